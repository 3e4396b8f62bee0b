// Local search over the positions of transfers in a list of steps: their order and the runs that they wait for. It may
// leave the class of schedules in which every prefetch comes after every offload.
#pragma once

#include "memsched/simulate/simulate.h"
#include "memsched/support/late_acceptance.h"

#include <random>

namespace memsched {

class StepWalk {
  public:
    StepWalk(Simulator& simulator, std::mt19937_64& random);

    void restart(const StepList& list, Seconds makespan); // list must be legal and have no `after`
    bool run(std::size_t moves, Seconds target);          // as SetWalk::run

    const StepList& best() const { return best_; }
    Seconds makespan() const { return best_makespan_; }

  private:
    void move_transfer(std::vector<Step>& steps);

    Simulator& simulator_;
    std::mt19937_64& random_;
    LateAcceptance walk_{64};
    StepList current_, trial_, best_;
    std::size_t transfers_ = 0;
    Seconds best_makespan_ = Simulator::illegal;
};

} // namespace memsched
