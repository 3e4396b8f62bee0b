// The steady state of a list of steps that is repeated without end.
//
// The times of one repetition are a function of those of the repetition before: maxima of sums, and in fluid memory the
// instant at which enough bytes are back, a minimum of maxima. Such a function has one period P: there are times that
// come again P later, and from whatever times it starts, it takes P per repetition in the long run. docs/schedule.md.
#pragma once

#include "memsched/simulate/repetition.h"
#include "memsched/simulate/timeline.h"
#include "memsched/support/progress.h"

#include <vector>

namespace memsched {

class Steady {
  public:
    // list: legal. capacity: bytes, without resident. Infinite times have an infinite period.
    Steady(const Graph& graph, const StepList& list, const Device& device, Bytes capacity,
           const Progress& progress = {});

    Seconds period() const { return period_; }

    // Writes down one repetition: period, peak, idle time; steps from the first start on; the memory of one period.
    void write(TotalsWriter& writer) const;
    void write(TimelineWriter& writer) const;

  private:
    struct Times { // of one repetition, by step
        std::vector<Seconds> start;
        std::vector<Seconds> through; // the end of all steps listed up to this one, also in repetitions before
    };
    struct Curve {
        Bytes peak = 0;
        std::vector<Seconds> times;
        std::vector<Bytes> bytes;
    };

    Times next(const Times& before) const;
    Seconds time_of(const Awaited& awaited, const Times& before, const Times& now) const;
    // When the bytes are back that a step waits for. Leaves its returns in order of time in by_time_.
    Seconds returned(std::size_t step, const Times& before, const Times& now) const;
    std::size_t count_awaited(std::size_t step) const;                      // how many of by_time_ those are
    bool choose(const Times& before, const Times& now, Seconds least_gain); // whether some come earlier than chosen
    void solve(Seconds least_gain);
    void count_from_first_start();
    Curve memory() const;

    mutable Pace pace_;
    mutable std::vector<std::pair<Seconds, const Awaited*>> by_time_;
    RepeatedSteps steps_;
    std::vector<std::vector<Awaited>> chosen_; // by step: returns that suffice
    std::size_t run_ = 0;                      // the first run
    Bytes at_border_;
    Seconds period_ = 0, busy_ = 0;
    Times times_; // of one repetition
};

} // namespace memsched
