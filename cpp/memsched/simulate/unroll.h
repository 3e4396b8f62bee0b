// A graph in which recomputation is explicit: every run is an op of its own, and every stay of a value on the device
// between two runs that write it is a tensor of its own.
#pragma once

#include "memsched/model/schedule.h"

#include <span>
#include <vector>

namespace memsched {

// One run step: an op, and whether it skips its tape.
struct Run {
    OpId op = 0;
    bool skip = false;
};

// Represents recomputation as a graph whose ops run once each, so that planners of transfers without recomputation can
// be used. Runs before the first op of phase backward keep their phase; all later ones get phase backward. First
// instances keep their names, later ones are called name#2, name#3, ..
struct Unrolled {
    Graph graph;
    std::vector<Run> runs;         // by op of `graph`
    std::vector<TensorId> tensors; // by tensor of `graph`: the tensor of the original
};

// Both throw ScheduleError if a run reads what no earlier run has written. The first throws std::length_error if all
// runs together exceed what a graph may have, and Stopped when told to stop.
Unrolled unroll(const Graph& graph, std::span<const Run> runs, const Progress& progress = {});

// The peak of the plain run of that graph, resident included, without making the graph.
Bytes peak_of_runs(const Graph& graph, std::span<const Run> runs);

// Translates a list of steps for the unrolled graph to the original.
StepList rolled(const Unrolled& unrolled, StepList list);

} // namespace memsched
