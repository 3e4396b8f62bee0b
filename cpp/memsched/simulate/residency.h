// The buffers of a list of steps, in list order: everything that needs an address.
#pragma once

#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// A buffer: bytes that are held from a step until just before another.
struct Stay {
    TensorId tensor = -1; // -1: the workspace of the run
    StepId start = 0;     // the run or prefetch that creates it; 0 also for inputs and weights
    StepId end = 0; // the step after its free, or after the run of a workspace; the number of steps if never freed
    Bytes bytes = 0;
    bool source = false; // an input or weight, present from the start
    Bytes at = StepList::no_address;
};

// In order of creation: sources in the graph's order, then step by step, a run's writes before its workspace. Empty
// buffers are left out. The list must be legal. `at` is filled if the list has addresses; then sources are packed from
// 0.
std::vector<Stay> residency(const Graph& graph, const StepList& list);

// The list with these addresses, one per buffer.
StepList with_addresses(const Graph& graph, StepList list, const std::vector<Bytes>& addresses);

} // namespace memsched
