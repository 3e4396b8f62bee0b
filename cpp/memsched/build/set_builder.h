// Turns an offload set into a list of steps: the ordered no-wait schedule, in fluid memory.
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/model/lifetimes.h"

#include <cstdint>
#include <span>
#include <vector>

namespace memsched {

// Turns offload sets of one graph into steps, many times. Each op runs once in graph order. An offloaded tensor is
// copied as soon as it is written, in order of release, freed after its last forward use, and fetched in the order of
// the ops that need it. All fetches come after all offloads.
class SetBuilder {
  public:
    // Keeps a reference to graph. Throws std::invalid_argument if an op has several choices.
    explicit SetBuilder(const Graph& graph);

    // The tensors that may be offloaded, in order of release (last forward use, then writer, then id).
    const std::vector<TensorId>& movable() const { return movable_; }

    // Fills `list`. travels has one entry per tensor; capacity is in bytes, resident excluded. False if some run has no
    // room whatever the timing.
    bool build(std::span<const std::uint8_t> travels, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    bool leave(std::span<const std::uint8_t> travels, Bytes capacity);

    const Graph& graph_;
    Lifetimes lifetimes_;
    FetchPlaces places_;
    std::vector<TensorId> movable_;
    std::vector<TensorId> by_need_; // movable tensors in the order of the ops that need them
    Outline outline_;               // with the events of all movable tensors
};

// Throws InfeasibleError if the set does not fit (min_memory: the least of the graph).
StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const FetchRule& rule);

// Throws that error.
[[noreturn]] void refuse_set(const Graph& graph, Bytes budget);

} // namespace memsched
