// Lower bounds on the period of every schedule of a graph with persistent tensors, whatever it keeps, moves or runs
// again, in any order.
#pragma once

#include "memsched/bounds/bounds.h"

namespace memsched {

// budget: bytes, resident included. `compute`: the fastest times; what may run on the host loads the link or the host
// instead, and the bound is the best of all shares. `transfer`: while an op runs, what does not fit beside it is not on
// the device, and what an op reads in each repetition must come back in each; what was updated, or has no copy on the
// host at the border, must leave in each, too. `fractional` is the larger of both. Infinite where no schedule exists.
Bounds steady_bounds(const Graph& graph, const Device& device, Bytes budget);

} // namespace memsched
