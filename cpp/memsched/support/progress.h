// How long work reports progress. The core has no clock: the caller of a planner owns the time limit.
#pragma once

#include <cstdint>
#include <functional>

namespace memsched {

// Outer loops call tick() often. It returns true when the planner should stop and return the best it has. Where the
// user asked to stop, it throws what the caller chose, such as Python's KeyboardInterrupt. A result never depends on it
// otherwise.
struct Progress {
    std::function<bool(double fraction)> on_tick;

    bool tick(double fraction) const { return on_tick && on_tick(fraction); }
};

// Thrown when work that cannot be left half done was told to stop. It is caught by the first caller that has something
// better to return; the bindings turn it into a LimitError.
struct Stopped {};

// Ticks for nested loops, by work done, in steps of some nanoseconds.
class Pace {
  public:
    // Does not stop before `patience` steps in total.
    explicit Pace(const Progress& progress, std::int64_t patience = 0) : progress_(&progress), patience_(patience) {}

    // Throws Stopped when told to stop.
    void spend(std::int64_t steps) {
        due_ -= steps;
        if (due_ <= 0) {
            patience_ -= steps_per_tick - due_;
            due_ = steps_per_tick;
            if (progress_->tick(0) && patience_ <= 0) {
                throw Stopped{};
            }
        }
    }

    // For work that can end at any point and return what it has.
    bool told_to_stop() const { return progress_->tick(0) && patience_ <= 0; }

    static constexpr std::int64_t steps_per_tick = 1 << 17;
    static constexpr std::int64_t named = 32; // steps for something with a name

  private:
    const Progress* progress_;
    std::int64_t patience_, due_ = steps_per_tick;
};

} // namespace memsched
