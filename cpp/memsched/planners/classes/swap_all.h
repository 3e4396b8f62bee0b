// Every feature map travels (PoocH's baselines "swap-all").
#pragma once

#include "memsched/planners/classes/class_search.h"

namespace memsched {

// The best of eager fetches, fetches one layer ahead and fetches on demand; one layer ahead unless `scheduled`. budget:
// bytes, resident included. Its makespan is Simulator::illegal where there is no such plan.
ClassSolution swap_all(const Graph& graph, const Device& device, Bytes budget, bool scheduled);

} // namespace memsched
