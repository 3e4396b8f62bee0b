// A lower bound on the makespan that holds for schedules that recompute, too.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"
#include "memsched/support/progress.h"

namespace memsched {

// Let p be an op that runs once. Of the tensors that ops before p write and ops after p read, those that do not fit
// beside p are brought back after p started: over the link, to which they went before, or by running their writers
// again. For every p the cheapest mixture of the two bounds the makespan, where any fraction of a tensor may go either
// way and a run pays for all tensors that it writes. At least the sum of the fastest times; budget: bytes, resident
// included. Infinite where nothing can be brought back. Of graphs too large for all p, those at which the plain run
// holds most are asked. Throws Stopped when told to stop.
Seconds recompute_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
