// From an order of ops to a list of steps: every op runs once, and what has been read for the last time is freed.
#pragma once

#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// order: every op once, each after those it reads from. keep, one entry a tensor: stays to the end, as weights do. A
// tensor that nobody reads is freed after its writer, and a tape is skipped where `least_run` says so. Each op takes
// its fastest algorithm that does not raise the peak above `limit` bytes, resident included; if none keeps to it, the
// one with the least workspace.
StepList order_steps(const Graph& graph, const std::vector<OpId>& order, const std::vector<std::uint8_t>& keep,
                     Bytes limit);

} // namespace memsched
