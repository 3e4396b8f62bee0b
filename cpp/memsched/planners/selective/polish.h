// Small changes of a finished list.
#pragma once

#include "memsched/model/schedule.h"
#include "memsched/simulate/simulate.h"

#include <cstdint>
#include <functional>
#include <random>

namespace memsched {

// Moves transfers and frees within a list that is not long, as long as its makespan does not grow: so many moves, and
// one for each step. The makespan is that of the list, before and after. Returns the number of lists that were
// simulated. Ends early if `stopped`, which is asked before each.
std::int64_t polished(Simulator& simulator, StepList& list, Seconds& makespan, std::int64_t moves,
                      std::mt19937_64& random, const std::function<bool()>& stopped);

} // namespace memsched
