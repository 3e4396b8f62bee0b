// Makespans of many offload sets of one graph, and the steps of one.
#pragma once

#include "memsched/model/device.h"
#include "memsched/steps/offload_steps.h"
#include "memsched/support/progress.h"

#include <span>
#include <vector>

namespace memsched {

// One row a set, one flag a tensor of the graph, rows one after the other. Returns one makespan a row (seconds), or
// infinity where the set does not run within the budget (bytes, resident included). With `stall` false a set also fails
// when a forward op has to wait for memory (TFLMS). Stops early when told to: rows not reached are infinity.
std::vector<Seconds> offload_set_makespans(const Graph& graph, const Device& device, Bytes budget,
                                           std::span<const std::uint8_t> rows, const PrefetchRule& rule, bool stall,
                                           const Progress& progress);

// Throws InfeasibleError when the set does not fit (min_memory: that of the graph).
StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const PrefetchRule& rule);

} // namespace memsched
