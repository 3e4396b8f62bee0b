// The common language for plans: an ordered list of run / offload / prefetch / free / update steps.
#pragma once

#include "memsched/model/to_graph.h"

#include <string>
#include <utility>
#include <vector>

namespace memsched {

enum class Verb : std::uint8_t { run, offload, prefetch, free, update };

// Whether it names an op; others name a tensor.
inline bool names_op(Verb verb) { return verb == Verb::run || verb == Verb::update; }

// A step with ids of a graph, as planners write and the simulator reads it.
struct Step {
    Verb verb = Verb::run;
    bool skip = false;       // run only: skip the op's tape
    std::int32_t id = 0;     // OpId of a run or an update, TensorId otherwise
    std::int32_t choice = 0; // run only: index of the algorithm
    StepId after = -1;       // index into StepList::after, or -1
};

// Which copies of a persistent tensor there are before the first step of a list, and again after the last.
enum class Copies : std::uint8_t { device, host, both };

struct StepList {
    static constexpr Bytes no_address = -1;

    std::vector<Step> steps;
    std::vector<std::vector<StepId>> after; // earlier steps to wait for, for the few steps that have any
    // For contiguous plans only, one entry per step: for a run the addresses of its writes, in the op's order, and of
    // its workspace; for a prefetch that of its tensor; none for other steps. no_address if nothing is placed.
    std::vector<std::vector<Bytes>> at;

    std::vector<std::pair<TensorId, Copies>> border; // of persistent tensors; those that are missing: device

    bool contiguous() const { return !at.empty(); }

    void run(OpId op) { steps.push_back({Verb::run, false, op, 0, -1}); }
    void offload(TensorId tensor) { steps.push_back({Verb::offload, false, tensor, 0, -1}); }
    void prefetch(TensorId tensor) { steps.push_back({Verb::prefetch, false, tensor, 0, -1}); }
    void free(TensorId tensor) { steps.push_back({Verb::free, false, tensor, 0, -1}); }
};

// Whether the step is a run that leaves this tensor out, a write of its op.
inline bool skips(const Graph& graph, const Step& step, TensorId write) { return step.skip && graph.taped(write); }

// Calls each(tensor, bytes, place) for what a run or prefetch brings to the device: tensors in the op's order, then a
// run's workspace, of tensor -1. place: its index in the step's entry of StepList::at, which has `count_brought`.
template <class Each> void each_brought(const Graph& graph, const Step& step, const Each& each) {
    if (step.verb == Verb::prefetch) {
        each(step.id, graph.tensor(step.id).bytes, std::size_t{0});
    }
    if (step.verb != Verb::run) {
        return;
    }
    const Op& op = graph.op(step.id);
    for (std::size_t place = 0; place < op.writes.size(); ++place) {
        if (!skips(graph, step, op.writes[place])) {
            each(op.writes[place], graph.tensor(op.writes[place]).bytes, place);
        }
    }
    each(TensorId{-1}, workspace(op, step.choice, step.skip), op.writes.size());
}

inline std::size_t count_brought(const Graph& graph, const Step& step) {
    return step.verb == Verb::run ? graph.op(step.id).writes.size() + 1 : step.verb == Verb::prefetch ? 1 : 0;
}

// A step with names, as saved, exchanged and shown. Empty and -1 mean absent.
struct NamedStep {
    Verb verb = Verb::run;
    std::string name;                              // of the op of a run or an update, of the tensor otherwise
    std::string alg;                               // run only
    std::vector<std::pair<std::string, Bytes>> at; // addresses: of a run's outputs ("" for its workspace), or of a
                                                   // prefetch (one entry, named like the tensor)
    std::vector<std::string> skip;                 // run only: tape outputs that are not written
    std::vector<StepId> after;                     // all but free: indices of earlier steps to wait for

    bool operator==(const NamedStep&) const = default;
};

struct Round {
    std::int64_t batch = 1;
    std::int64_t times = 1;

    bool operator==(const Round&) const = default;
};

enum class MemoryMode { fluid, contiguous };

// Immutable after construction by convention: bindings return only copies and read-only views.
struct Schedule {
    std::string planner = "{}"; // JSON text of the planner's name and options
    std::string graph;
    Chunk chunk;
    std::vector<Round> rounds{{1, 1}};
    Bytes budget = 0; // bytes, resident included
    MemoryMode memory = MemoryMode::fluid;
    std::vector<std::pair<std::string, Copies>> border; // as in StepList
    std::vector<NamedStep> steps;

    bool operator==(const Schedule&) const = default;
};

// Throws ScheduleError for a schedule that is illegal on any graph: budget <= 0, no or bad rounds, `after` that does
// not point backwards, an `after` on a free, a border that names a tensor twice.
void check_schedule(const Schedule& schedule);

// Names that at least so many steps of a verb have, in the order in which they reach that count: (offload, 1) are the
// offloaded tensors, (run, 2) the recomputed ops.
std::vector<std::string> names_with(const Schedule& schedule, Verb verb, int count);

// Translates names to ids. Throws ScheduleError for an unknown op, tensor, algorithm or tape output, an ambiguous
// algorithm, a partly skipped tape, a border of tensors that are not persistent, a step list written for another graph
// or batch.
// Throws Stopped when told to stop, like the next.
StepList resolve(const Graph& graph, const Schedule& schedule, const Progress& progress = {});

// Translates ids to names.
std::vector<NamedStep> name_steps(const Graph& graph, const StepList& list, const Progress& progress = {});

// A list of steps as a schedule of one round; planner: JSON text of its name and options.
Schedule name_schedule(const Graph& graph, Bytes budget, const StepList& list, const std::string& planner,
                       const Chunk& chunk = {});

} // namespace memsched
