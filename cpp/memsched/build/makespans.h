// Makespans of many plans of one graph.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/build/set_builder.h"
#include "memsched/model/device.h"
#include "memsched/support/progress.h"

#include <span>
#include <vector>

namespace memsched {

// One row a set, one flag a tensor of the graph, rows one after the other. Returns one makespan a row (seconds), or
// infinity where the set does not run within the budget (bytes, resident included). With `stall` false a set also fails
// when a forward op has to wait for memory (TFLMS). Stops early when told to: rows not reached are infinity.
std::vector<Seconds> offload_set_makespans(const Graph& graph, const Device& device, Bytes budget,
                                           std::span<const std::uint8_t> rows, const FetchRule& rule, bool stall,
                                           const Progress& progress);

// The first counts[k] feature maps travel, fetched layers[row] layers ahead, and all others stay: seconds, or infinity
// where there is no such plan in the device's memory; rows one after the other, one entry a count. All ops must have
// one choice. What was not reached when told to stop is infinity; with `any` so is all behind the first plan that runs.
std::vector<Seconds> prefix_makespans(const Graph& graph, const Device& device, std::span<const std::int64_t> counts,
                                      std::span<const int> layers, bool any, const Progress& progress);

} // namespace memsched
