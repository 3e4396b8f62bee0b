// From what must happen in a step, in order, to a list of steps: where the fetches stand.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

#include <span>
#include <vector>

namespace memsched {

// Where prefetches stand in the list: all in the order of the runs that need them, each ..
struct FetchRule {
    enum class Kind {
        demand,       // .. right before that run,
        ops,          // .. `ahead` runs before it,
        layers,       // .. right after the first run of the backward of the layer `ahead` layers before,
        convolutions, // .. the same, where only layers of kind "conv" count,
        eager,        // .. as early as no later run is left without room.
    };
    Kind kind = Kind::eager;
    int ahead = 1;
    bool soft = false; // on demand what has no room there, instead of no plan
};

// What happens in a step, in order. A fetch is asked for where its tensor is first wanted.
struct WalkEvent {
    enum What : std::uint8_t { run, offload, leave, free, fetch } what;
    std::int32_t id; // OpId of a run, TensorId otherwise
};

struct Fetch {
    TensorId tensor;
    std::int32_t need;     // the run that reads it first
    std::int32_t earliest; // it stands not before this run,
    std::int32_t at;       // but right before this one; until it is placed, when it was asked for
};

// A step whose fetches have no places yet.
struct Walk {
    std::vector<WalkEvent> events;
    std::vector<OpId> runs;     // of these events
    std::vector<Bytes> usage;   // by run: bytes held while it runs, resident excluded, each fetch from its need on
    std::vector<Fetch> fetches; // in the order of their needs
};

// Lists walks of one graph many times over.
class FetchPlaces {
  public:
    // turn: the first op of the backward. Keeps a reference to graph. Throws std::invalid_argument where an op has
    // several choices: nothing here chooses.
    FetchPlaces(const Graph& graph, OpId turn);

    // The rest of a walk, from its events. A fetch that is dropped before a run reads its tensor is left out, of the
    // events as well.
    void attribute(Walk& walk);

    // Fills `list`; false where the rule leaves no room in `capacity` bytes (resident excluded). Of the events offload
    // and leave only those of tensors that travel happen; all do where `travels` is empty.
    bool list(Walk& walk, Bytes capacity, const FetchRule& rule, std::span<const std::uint8_t> travels, StepList& list);

  private:
    struct Crest {
        std::int32_t run;
        Bytes level; // its usage, less the fetches that are needed by then
    };

    bool place(Walk& walk, Bytes capacity, const FetchRule& rule);
    std::int32_t layers_before(const Walk& walk, std::int32_t need, const FetchRule& rule) const;
    void find_layers(const Walk& walk);

    const Graph& graph_;
    OpId turn_;
    std::vector<Crest> fullest_;          // see place()
    std::vector<std::int32_t> freed_;     // by tensor: the run before which it was last dropped
    std::vector<std::int32_t> waiting_;   // by tensor: when its fetch was asked for, 0: none is
    std::vector<std::int32_t> layer_;     // by op, from 0 on without gaps; filled when a rule counts layers
    std::vector<std::int32_t> first_run_; // by layer: its first run in the backward, -1: none
};

} // namespace memsched
