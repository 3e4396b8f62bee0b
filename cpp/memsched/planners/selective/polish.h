// Small changes of a finished list.
#pragma once

#include "memsched/model/schedule.h"
#include "memsched/simulate/simulate.h"

#include <cstdint>
#include <functional>
#include <random>

namespace memsched {

// Of a plan whose list is not long, moves transfers and frees, as long as its makespan does not grow.
class Polishing {
  public:
    // Keeps a reference to the simulator.
    explicit Polishing(Simulator& simulator) : simulator_(simulator) {}

    // Goes on, or begins with this plan, if that is better or nothing was gained the last time: so many moves, and one
    // for each step. Ends early if `stopped`, which is asked before each.
    void run(const StepList& plan, Seconds makespan, std::int64_t moves, std::mt19937_64& random,
             const std::function<bool()>& stopped);

    Seconds makespan() const { return best_; }
    const StepList& steps() const { return steps_; } // of the best plan
    std::int64_t evaluations() const { return evaluations_; }

  private:
    Simulator& simulator_;
    StepList list_, steps_;
    Seconds now_ = Simulator::illegal, best_ = Simulator::illegal; // of these two
    bool stuck_ = false;
    std::int64_t evaluations_ = 0; // lists that were simulated
};

} // namespace memsched
