// How long work reports that it is alive. The core has no clock: whoever calls a planner owns the time limit.
#pragma once

#include <functional>

namespace memsched {

// Outer loops call tick() often. It returns true when the planner should stop and return the best it has, and throws
// Interrupted when the user asked to stop. A result never depends on it otherwise.
struct Progress {
    std::function<bool(double fraction)> on_tick;

    bool tick(double fraction) const { return on_tick && on_tick(fraction); }
};

} // namespace memsched
