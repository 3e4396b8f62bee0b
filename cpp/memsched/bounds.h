// Lower bounds on the makespan, valid for every schedule of the graph that runs each op once in graph order.
#pragma once

#include "memsched/device.h"
#include "memsched/graph.h"

namespace memsched {

struct Bounds {
    Seconds compute = 0;    // sum of the fastest times
    Seconds transfer = 0;   // what exceeds the memory at the peak must leave and come back (Euro-Par 2020, Prop. 3)
    Seconds fractional = 0; // optimum when any fraction of a tensor may move at any time (Euro-Par 2020, Theorem 2)
};

// budget: bytes, resident included. Infinite where no schedule without recomputation exists.
Bounds lower_bounds(const Graph& graph, const Device& device, Bytes budget);

} // namespace memsched
