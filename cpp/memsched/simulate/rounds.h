// The rounds of a family, timed one batch after the other.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"
#include "memsched/simulate/timeline.h"

#include <cstdint>
#include <map>

namespace memsched {

// A family's plan: the list runs on the graph of each round's batch. Times and bytes moved are sums over all rounds,
// the peak is the largest; steps and the memory over time are those of the first round, and blocks are left out.
// Throws ScheduleError where the rounds do not add up to the full batch, too.
Timeline simulate_rounds(const std::map<std::int64_t, const Graph*>& graphs, std::int64_t full,
                         const Schedule& schedule, const Device& device);

} // namespace memsched
