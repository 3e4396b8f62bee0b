// The errors of the core. Bad input is std::invalid_argument; an internal bug is an assert.
#pragma once

#include "memsched/support/units.h"

#include <stdexcept>
#include <string>

namespace memsched {

// The planner's class has no plan; min_memory is the least M (resident included) for which it has one.
class InfeasibleError : public std::runtime_error {
  public:
    InfeasibleError(const std::string& message, Bytes least) : std::runtime_error(message), min_memory(least) {}
    Bytes min_memory;
};

// A schedule that cannot run; step is the index of the failing step, or -1 for the schedule as a whole.
class ScheduleError : public std::runtime_error {
  public:
    ScheduleError(const std::string& message, StepId at = -1) : std::runtime_error(message), step(at) {}
    StepId step;
};

[[noreturn]] inline void refuse_step(std::size_t step, const std::string& message) {
    throw ScheduleError("step " + std::to_string(step) + ": " + message, static_cast<StepId>(step));
}

} // namespace memsched
