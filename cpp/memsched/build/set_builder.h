// From "which tensors travel" to a list of steps: the no-wait ordered schedule (GRAPH spec "build", fluid memory).
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/lifetimes.h"
#include "memsched/model/schedule.h"

#include <cstdint>
#include <vector>

namespace memsched {

// Where prefetches stand in the list.
struct PrefetchRule {
    enum class Kind {
        eager,  // as early as no later run is left without room
        window, // `ahead` ops before the op that needs it, and no check that it fits (TFLMS)
    };
    Kind kind = Kind::eager;
    int ahead = 1;
};

// Turns offload sets into steps, many times over one graph. Each op runs once in graph order. A tensor that travels is
// offloaded as soon as it is written, in order of release, freed after its last forward use, and fetched in the order
// of the ops that need it.
class SetBuilder {
  public:
    // capacity: bytes, resident excluded. Keeps a reference to graph. Throws std::invalid_argument where an op has
    // several choices: this class does not choose.
    SetBuilder(const Graph& graph, Bytes capacity);

    // Bytes that may be held from now on, resident excluded.
    void set_capacity(Bytes capacity) { capacity_ = capacity; }

    // The tensors that may travel, in order of release (last forward use, then writer, then id).
    const std::vector<TensorId>& movable() const { return movable_; }

    // Fills `list`; travels has one entry a tensor. False when some run has no room whatever the timing.
    bool build(const std::vector<std::uint8_t>& travels, const PrefetchRule& rule, StepList& list);

  private:
    struct Fetch {
        TensorId tensor;
        OpId need; // the first backward reader
        OpId at;   // stands right before this op
    };

    struct Crest {
        OpId op;
        Bytes level; // usage less the fetches that are needed by then
    };

    bool place(const std::vector<std::uint8_t>& travels, const PrefetchRule& rule);
    void fetch_eagerly(OpId earliest);
    bool fetch_ahead(OpId earliest, int ahead);
    void emit(const std::vector<std::uint8_t>& travels, StepList& list) const;

    const Graph& graph_;
    Bytes capacity_;
    Lifetimes lifetimes_;
    std::vector<TensorId> movable_;
    std::vector<TensorId> by_need_;                  // movable tensors in the order of the ops that need them
    std::vector<std::vector<TensorId>> written_;     // per op + 1 (0: inputs): movable tensors, in order of release
    std::vector<std::vector<TensorId>> forward_end_; // per op: movable tensors whose last forward use it is
    std::vector<std::vector<TensorId>> last_read_;   // per op: tensors freed after it
    std::vector<Bytes> usage_;                       // per op, with the current set away
    std::vector<Fetch> fetches_;
    std::vector<Crest> crests_;
};

// Throws InfeasibleError when the set does not fit (min_memory: that of the graph).
StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const PrefetchRule& rule);

// What it throws.
[[noreturn]] void refuse_set(const Graph& graph, Bytes budget);

} // namespace memsched
