// From "which tensors travel" to a list of steps: the no-wait ordered schedule (GRAPH spec "build", fluid memory).
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/model/lifetimes.h"

#include <cstdint>
#include <vector>

namespace memsched {

// Turns offload sets into steps, many times over one graph. Each op runs once in graph order. A tensor that travels is
// offloaded as soon as it is written, in order of release, freed after its last forward use, and fetched in the order
// of the ops that need it; all fetches stand after all offloads.
class SetBuilder {
  public:
    // Keeps a reference to graph. Throws std::invalid_argument where an op has several choices.
    explicit SetBuilder(const Graph& graph);

    // The tensors that may travel, in order of release (last forward use, then writer, then id).
    const std::vector<TensorId>& movable() const { return movable_; }

    // Fills `list`; travels has one entry a tensor, capacity are bytes, resident excluded. False when some run has no
    // room whatever the timing.
    bool build(const std::vector<std::uint8_t>& travels, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    bool leave(const std::vector<std::uint8_t>& travels, Bytes capacity);

    const Graph& graph_;
    Lifetimes lifetimes_;
    FetchPlaces places_;
    std::vector<TensorId> movable_;
    std::vector<TensorId> by_need_; // movable tensors in the order of the ops that need them
    Walk walk_;                     // whose events are those of all movable tensors
};

// Throws InfeasibleError when the set does not fit (min_memory: that of the graph).
StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const FetchRule& rule);

// What it throws.
[[noreturn]] void refuse_set(const Graph& graph, Bytes budget);

} // namespace memsched
