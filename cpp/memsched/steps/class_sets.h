// Makespans of many plans from classes of one graph.
#pragma once

#include "memsched/model/device.h"
#include "memsched/steps/class_plans.h"
#include "memsched/support/progress.h"

#include <span>
#include <vector>

namespace memsched {

// The first counts[k] feature maps travel, fetched layers[row] layers ahead, and all others stay: seconds, or infinity
// where there is no such plan in the device's memory; rows one after the other, one entry a count. All ops must have
// one choice. What was not reached when told to stop is infinity; with `any` so is all behind the first plan that runs.
std::vector<Seconds> prefix_makespans(const Graph& graph, const Device& device, std::span<const std::int64_t> counts,
                                      std::span<const int> layers, bool any, const Progress& progress);

} // namespace memsched
