// When a list of steps holds what, by the order of the list: what an address is needed for.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// Bytes that are held from a step until just before another.
struct Block {
    TensorId tensor = -1; // -1: the workspace of the run
    StepId start = 0;     // the run or prefetch that brings it; 0 also for inputs and weights
    StepId end = 0;       // the step after its free, or after the run of a workspace; the number of steps: not freed
    Bytes bytes = 0;
    bool source = false; // an input or a weight that is there from the beginning
    Bytes at = StepList::no_address;

    bool operator==(const Block&) const = default;
};

// In the order in which they begin: sources in the graph's order, then step by step, a run's writes before its
// workspace. Blocks without bytes are left out. The list must be legal. `at` is filled where the list has addresses,
// and then sources are packed from 0.
std::vector<Block> residency(const Graph& graph, const StepList& list);

// The list with these addresses, one a block.
StepList with_addresses(const Graph& graph, StepList list, const std::vector<Bytes>& addresses);

} // namespace memsched
