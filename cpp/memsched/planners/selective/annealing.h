// Simulated annealing on the list of runs and transfers of a plan.
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/planners/selective/run_list.h"
#include "memsched/planners/selective/selective.h"
#include "memsched/simulate/simulate.h"

#include <cstdint>
#include <functional>

namespace memsched {

constexpr std::int64_t first_part = 600; // annealed after so many moves, and then after twice as many, and so on

// Without a link the time of all runs is the makespan, and about a million changes a second are tried. With one, some
// changes at a time are simulated.
class Annealing {
  public:
    // graph: with persistent tensors, the closed one; simulator: of the `ops` that its lists have. Keeps references to
    // both.
    Annealing(const Graph& graph, std::size_t ops, Simulator& simulator, bool linked);

    // Goes on from this plan if it is better than the best so far. room: bytes that its lists may hold, without
    // resident. moves: up to 1,000 changes each, or, with a link, two lists that are simulated, five of whole steps. Of
    // these only the first `most` are tried: with a link they are those of a longer run. Ends early if `stopped`, which
    // is asked after each. Plans with updates on the host stay as they are.
    void run(const StepList& plan, Seconds makespan, Bytes room, std::int64_t moves, std::int64_t most,
             std::uint64_t seed, const std::function<bool()>& stopped);

    Seconds makespan() const { return best_; }
    const StepList& steps() const { return steps_; } // of the best plan
    std::int64_t evaluations() const { return evaluations_; }

  private:
    Seconds judge(const RunList& runs);
    bool list(const RunList& runs);

    const Graph& graph_;
    std::size_t ops_;
    Simulator& simulator_;
    Bytes room_ = 0; // of the best plan
    bool linked_;
    Seconds mean_ = 0; // time of an op
    FetchPlaces places_;
    Outline outline_;
    StepList list_, steps_;
    Seconds best_ = Simulator::illegal;
    std::int64_t evaluations_ = 0;
};

// The plan without what it sends for nothing.
SelectiveSolution finished(const Graph& graph, StepList steps, std::int64_t evaluations);

} // namespace memsched
