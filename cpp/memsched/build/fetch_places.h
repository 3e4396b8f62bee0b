// Turns an outline (the events of a training step, in order) into a list of steps, by placing its fetches.
#pragma once

#include "memsched/model/schedule.h"

#include <optional>
#include <span>
#include <vector>

namespace memsched {

// Where fetches are placed in the list: all in the order of the runs that need them, each ..
struct FetchRule {
    enum class Kind {
        demand,       // .. right before that run,
        ops,          // .. `ahead` runs before it,
        layers,       // .. right after the first backward run of the layer `ahead` layers before,
        convolutions, // .. the same, counting only layers of kind "conv",
        eager,        // .. as early as possible without taking the room of a later run.
    };
    Kind kind = Kind::eager;
    int ahead = 1;
    bool soft = false; // a fetch without room there is placed on demand, instead of failing
};

// An event of the outline. A fetch is requested where its tensor is first wanted.
struct PlanEvent {
    enum What : std::uint8_t { run, offload, leave, free, fetch, update } what;
    std::int32_t id;   // OpId of a run or an update, TensorId otherwise
    bool skip = false; // run only: without its tape
};

struct Fetch {
    TensorId tensor;
    std::int32_t need;     // the first run that reads it
    std::int32_t earliest; // it is placed no earlier than before this run,
    std::int32_t at;       // and right before this one; until placed: when it was requested
};

// The events of a training step, whose fetches are not yet placed.
struct Outline {
    std::vector<PlanEvent> events;
    std::vector<OpId> runs;   // of these events
    std::vector<Bytes> usage; // by run: bytes held while it runs, resident excluded, each fetch counts from its need on
    std::vector<Fetch> fetches; // in the order of their needs
};

// Turns outlines of one graph into lists of steps, many times.
class FetchPlaces {
  public:
    // turn: the first op of the backward. Keeps a reference to graph. Throws std::invalid_argument if an op has several
    // choices, since nothing is chosen here.
    FetchPlaces(const Graph& graph, OpId turn);

    // Fills the rest of an outline from its events. A fetch that is dropped before a run reads its tensor is removed,
    // also from the events.
    // at_start: bytes on the device before the first event, without resident; none: those of all sources.
    void attribute(Outline& outline, std::optional<Bytes> at_start = {});

    // Fills `list`; false if the rule leaves no room in `capacity` bytes (resident excluded). Offload and leave events
    // apply only to tensors in `travels`, or to all if `travels` is empty.
    bool list(Outline& outline, Bytes capacity, const FetchRule& rule, std::span<const std::uint8_t> travels,
              StepList& list);

    // The same for events that are repeated without end, by the rule `eager`: a fetch for the next repetition may be
    // placed in this one, and then its tensor is on the device and the host at the border. border: by tensor, before
    // fetches are placed; device for those that are not persistent.
    bool list_repeated(Outline& outline, std::span<const Copies> border, Bytes capacity, StepList& list);

  private:
    struct Crest {
        std::int32_t run;
        Bytes level; // its usage, minus the fetches needed by then
    };

    bool place(Outline& outline, Bytes capacity, const FetchRule& rule);
    std::int32_t layers_before(const Outline& outline, std::int32_t need, const FetchRule& rule);
    void find_layers(const Outline& outline);

    const Graph& graph_;
    OpId turn_;
    std::vector<Bytes> written_;          // by op: the bytes of its outputs
    std::vector<Crest> fullest_;          // see place()
    std::vector<std::int32_t> freed_;     // by tensor: the run before which it was last dropped
    std::vector<std::int32_t> waiting_;   // by tensor: when its fetch was requested; 0: not at all
    std::vector<std::int32_t> layer_;     // by op: dense layer numbers from 0; filled when a rule counts layers
    std::vector<std::int32_t> first_run_; // by layer: its first run in the backward, -1: none
    std::vector<std::int32_t> earlier_;   // by layer of the backward before `passed_`: the one met last before it,
    std::vector<std::int32_t> later_;     // and after it; -1: not met; the last entry begins and ends this ring
    std::int32_t passed_ = 0;
};

} // namespace memsched
