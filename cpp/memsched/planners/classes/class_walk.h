// A random walk over classes of feature maps.
#pragma once

#include "memsched/planners/classes/class_search.h"

#include <cstdint>

namespace memsched {

// Beyond the paper: changes the classes of one to three maps at random, by late acceptance on the makespan, until told
// to stop, and returns the best. `evaluations` counts on.
ClassSolution improve_classes(const Graph& graph, const Device& device, ClassSolution start, std::uint64_t seed,
                              std::int64_t& evaluations, const Progress& progress);

} // namespace memsched
