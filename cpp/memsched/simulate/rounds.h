// Simulates the rounds of a family, one per batch size.
#pragma once

#include "memsched/model/device.h"
#include "memsched/simulate/timeline.h"

#include <cstdint>
#include <map>

namespace memsched {

// A plan for a family: the list runs on the graph of each round's batch. Times and bytes moved are sums over all
// rounds, the peak is the largest. Steps and the memory over time are those of the first round, and blocks are left
// out. Also throws ScheduleError if the rounds do not add up to the full batch.
Timeline simulate_rounds(const std::map<std::int64_t, const Graph*>& graphs, std::int64_t full,
                         const Schedule& schedule, const Device& device);

} // namespace memsched
