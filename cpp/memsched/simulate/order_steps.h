// Turns an order of ops into a list of steps: every op runs once, and tensors are freed after their last reader.
#pragma once

#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// order: every op once, each after those it reads from. keep, one entry per tensor: stays until the end, as weights do.
// A tensor that nobody reads is freed after its writer, and a tape is skipped where `least_run` says so. Each op uses
// its fastest algorithm that does not raise the peak above `limit` bytes, resident included; if there is none, the one
// with the least workspace.
StepList order_steps(const Graph& graph, const std::vector<OpId>& order, const std::vector<std::uint8_t>& keep,
                     Bytes limit);

} // namespace memsched
