// Local search over offload sets, by the simulated makespan of the no-wait schedule of each set. Among sets that are
// about equally fast it prefers those that move less; otherwise, on plateaus, the walk would drift towards offloading
// half of all tensors.
#pragma once

#include "memsched/build/set_builder.h"
#include "memsched/planners/offload/flip_move.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/late_acceptance.h"

#include <random>

namespace memsched {

class SetWalk {
  public:
    SetWalk(const Graph& graph, SetBuilder& builder, Bytes capacity, Simulator& simulator, std::mt19937_64& random);

    // Makespan of a set; Simulator::illegal when it does not run.
    Seconds evaluate(const std::vector<std::uint8_t>& travels);

    void restart(const std::vector<std::uint8_t>& travels, Seconds makespan);
    // Restarts a quarter of the flags away from `travels`, or at it when nothing that far away runs.
    void perturb(const std::vector<std::uint8_t>& travels, Seconds makespan);
    // Tries up to `moves` neighbours, fewer if `target` is reached. Whether the best since the restart improved.
    bool run(std::size_t moves, Seconds target);

    const std::vector<std::uint8_t>& best() const { return best_; }
    Seconds makespan() const { return best_makespan_; }

  private:
    double value(const std::vector<std::uint8_t>& travels, Seconds makespan) const; // what the walk descends on

    const Graph& graph_;
    SetBuilder& builder_;
    Bytes capacity_;
    Simulator& simulator_;
    std::mt19937_64& random_;
    StepList list_;
    FlipMove move_;
    LateAcceptance walk_{64};
    std::vector<std::uint8_t> current_, best_;
    Seconds best_makespan_ = Simulator::illegal;
    double price_ = 0; // of a byte that travels, in makespans
};

} // namespace memsched
