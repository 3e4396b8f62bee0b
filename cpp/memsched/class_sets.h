// Makespans of many plans from classes of one graph.
#pragma once

#include "memsched/class_plans.h"
#include "memsched/device.h"
#include "memsched/progress.h"

#include <span>
#include <vector>

namespace memsched {

// One row a plan, one class a feature map, rows one after the other. Returns one makespan a row (seconds), or infinity
// where there is no plan in the device's memory. All ops must have one choice. Rows not reached when told to stop are
// infinity.
std::vector<Seconds> class_makespans(const Graph& graph, const Device& device, std::span<const MapClass> rows,
                                     const FetchRule& rule, const Progress& progress);

} // namespace memsched
