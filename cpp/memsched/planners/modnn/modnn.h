// moDNN (Chen et al., 2018), Algorithm 1: one scan of the ops that places, offloads, prefetches and chooses algorithms
// in contiguous memory, and keeps the time of the steps that it writes.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/schedule.h"

namespace memsched {

struct ModnnSolution {
    StepList steps;       // with addresses
    Seconds makespan = 0; // by its own clock, equal to the simulator's
};

// The least budget in bytes, resident included: eq. (2), or the bytes of inputs and weights if larger.
Bytes modnn_min_memory(const Graph& graph);

// The largest of reads, writes and workspace over the ops, bytes, with the fastest algorithm of each: eq. (1).
Bytes need_of_fastest(const Graph& graph);

// A plan for one batch. foresee: line 16, no prefetch that would leave one of the next ops without room. Throws
// InfeasibleError, and Stopped when told to stop.
ModnnSolution modnn(const Graph& graph, const Device& device, bool foresee, const Progress& progress);

} // namespace memsched
