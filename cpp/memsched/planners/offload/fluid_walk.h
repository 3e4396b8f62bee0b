// Local search over offload sets in the interruptible model: finds sets whose size matches the bytes that must leave,
// where the beam of the dynamic program is too narrow.
#pragma once

#include "memsched/planners/offload/flip_move.h"
#include "memsched/planners/offload/fluid_chain.h"
#include "memsched/support/late_acceptance.h"

#include <random>
#include <vector>

namespace memsched {

class FluidWalk {
  public:
    explicit FluidWalk(const FluidModel& model);

    // Walks from a feasible set; deterministic. Returns after `evaluations` sets, or when the makespan reaches
    // `target`. The best set found is in offloaded(), its makespan the return value.
    double run(const std::vector<std::uint8_t>& from, double makespan, double target, std::size_t evaluations);
    const std::vector<std::uint8_t>& offloaded() const { return best_; }

  private:
    double evaluate(std::size_t first_changed);

    const FluidModel& model_;
    std::mt19937_64 random_{0};
    FlipMove move_;
    LateAcceptance walk_{256};
    std::vector<std::size_t> stages_;
    std::vector<std::uint8_t> current_, best_;
    std::vector<FluidState> states_; // of the current set, before each stage; valid up to valid_
    std::size_t valid_ = 0;
};

} // namespace memsched
