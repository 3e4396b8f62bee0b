// The errors of the core. Bad input is std::invalid_argument; a bug of ours is an assert.
#pragma once

#include "memsched/support/units.h"

#include <stdexcept>
#include <string>

namespace memsched {

// No plan exists in the planner's class; min_memory is the least M (resident included) for which one does.
class InfeasibleError : public std::runtime_error {
  public:
    InfeasibleError(const std::string& message, Bytes least) : std::runtime_error(message), min_memory(least) {}
    Bytes min_memory;
};

// A schedule that cannot run; step is the index of the step to blame, or -1 for the schedule as a whole.
class ScheduleError : public std::runtime_error {
  public:
    ScheduleError(const std::string& message, StepId at) : std::runtime_error(message), step(at) {}
    StepId step;
};

// Thrown by a tick when the user has asked to stop (Ctrl-C); planners let it pass.
class Interrupted : public std::exception {};

} // namespace memsched
