// A lower bound on the makespan of every schedule, by what must come between two ops that run once.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"
#include "memsched/support/progress.h"

namespace memsched {

struct PauseBound {
    Seconds seconds = 0; // 0: there is none
    OpId op = -1;        // the cut bound holds until its end, the pauses after it
};

// The cut bound until the end of an op, and from then on the ops that follow and the pauses before them. The op is
// the last one with all pauses after it.
// budget: bytes, resident included.
PauseBound pause_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
