// Where fetches stand: from what must happen in a step, in order, to a list of steps.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// Where prefetches stand in the list: all in the order of the runs that need them, each ..
struct FetchRule {
    enum class Kind {
        demand, // .. right before that run,
        layers, // .. right after the first run of an earlier layer of the backward, if it fits there,
        eager,  // .. as early as no later run is left without room.
    };
    Kind kind = Kind::eager;
    int layers = 1;            // how much earlier the layer is
    bool convolutions = false; // only layers of kind "conv" count
    bool soft = false;         // on demand what does not fit, instead of no plan
};

// What happens in a step, in order. A fetch stands where its tensor is first wanted.
struct WalkEvent {
    enum class What : std::uint8_t { run, offload, free, fetch };
    What what;
    std::int32_t id; // OpId of a run, TensorId otherwise
};

// Lists walks of one graph, whose ops have one choice each, many times over.
class FetchPlaces {
  public:
    // turn: the first op of the backward. Keeps a reference to graph.
    FetchPlaces(const Graph& graph, OpId turn);

    // Fills `list`; false where the rule leaves no room in `capacity` bytes (resident excluded). A fetch that is
    // dropped before a run reads its tensor is left out, of `events` as well.
    bool list(std::vector<WalkEvent>& events, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    struct Fetch {
        TensorId tensor;
        std::int32_t asked;    // it is the so manieth
        std::int32_t need;     // the run that reads it first
        std::int32_t earliest; // it stands not before this run,
        std::int32_t at;       // but right before this one
    };

    void attribute(std::vector<WalkEvent>& events);
    bool place(Bytes capacity, const FetchRule& rule);
    std::int32_t layers_before(std::int32_t run, const FetchRule& rule) const;
    void emit(const std::vector<WalkEvent>& events, StepList& list) const;
    Bytes bytes(TensorId tensor) const { return graph_.tensor(tensor).bytes; }

    const Graph& graph_;
    OpId turn_;
    std::vector<std::int32_t> layer_; // by op, from 0 on without gaps
    std::int32_t layers_ = 0;

    std::vector<OpId> runs_;
    std::vector<Bytes> usage_; // by run; place() takes from it what other fetches brought before
    std::vector<Fetch> fetches_;
    std::vector<std::int32_t> fullest_;   // runs, see place()
    std::vector<std::int32_t> freed_;     // by tensor: the run before which it was last dropped
    std::vector<std::int32_t> waiting_;   // by tensor: when its fetch was asked for, 0: none is
    std::vector<std::int32_t> first_run_; // by layer: its first run in the backward, -1: none
};

} // namespace memsched
