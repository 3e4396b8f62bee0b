// A lower bound on the makespan that also holds for schedules that recompute.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"

namespace memsched {

// Let p be an op that runs once. Of the tensors that ops before p write and ops after p read, those that do not fit
// beside p are brought back after p started: over the link, having been offloaded before, or by recomputation. The
// cheapest mixture of the two bounds the makespan, for every p; any fraction of a tensor may go either way, and a run
// counts for all tensors that it writes. The bound is at least the sum of the fastest times. budget: bytes, resident
// included. Infinite if nothing can be brought back. In graphs too large for all p, those at which the plain run holds
// most are used. Throws Stopped when told to stop.
Seconds recompute_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
