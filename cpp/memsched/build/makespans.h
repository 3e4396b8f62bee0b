// Makespans of many plans of one graph.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/build/set_builder.h"
#include "memsched/model/device.h"

#include <span>
#include <vector>

namespace memsched {

// One row per set, one flag per tensor, rows concatenated. Returns one makespan (seconds) per row, or infinity if the
// set does not run within the budget (bytes, resident included). With `stall` false a set also fails if a forward op
// has to wait for memory (TFLMS). Stops early when told to; rows not reached are infinite.
std::vector<Seconds> offload_set_makespans(const Graph& graph, const Device& device, Bytes budget,
                                           std::span<const std::uint8_t> rows, const FetchRule& rule, bool stall,
                                           const Progress& progress);

// Makespans (seconds) of plans in which the first counts[k] feature maps are offloaded, with fetches layers[row] layers
// ahead, and all others stay: one row per entry of layers, one entry per count. Infinity if no such plan fits the
// device's memory. All ops must have one choice. Entries not reached when told to stop are infinite; with `any`, so are
// all after the first plan that runs.
std::vector<Seconds> prefix_makespans(const Graph& graph, const Device& device, std::span<const std::int64_t> counts,
                                      std::span<const int> layers, bool any, const Progress& progress);

} // namespace memsched
