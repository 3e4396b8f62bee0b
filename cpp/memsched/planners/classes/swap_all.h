// Every feature map is swapped (PoocH's baselines "swap-all").
#pragma once

#include "memsched/planners/classes/class_search.h"

namespace memsched {

// The best of eager fetches, fetches one layer ahead and fetches on demand; one layer ahead unless `scheduled`. budget:
// bytes, resident included. The makespan is Simulator::illegal if there is no such plan.
ClassSolution swap_all(const Graph& graph, const Device& device, Bytes budget, bool scheduled);

} // namespace memsched
