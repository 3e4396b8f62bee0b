// GREEDY and DYNPROG on one chain, for any memory and link: data shared by all points is prepared once.
#pragma once

#include "memsched/bounds/bounds.h"
#include "memsched/build/set_builder.h"
#include "memsched/planners/offload/dynprog_slots.h"
#include "memsched/simulate/simulate.h"

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace memsched {

using TensorFlags = std::vector<std::uint8_t>; // one per tensor: whether it is offloaded

// An offload set, and its value in the planner's own model.
struct ChainChoice {
    TensorFlags tensors;
    std::optional<FluidSolution> model; // of DYNPROG
};

// The planner of a point: GREEDY, or with `fluid` DYNPROG.
struct ChainPlanner {
    std::optional<FluidOptions> fluid;
    bool break_ties = true; // DYNPROG takes GREEDY's set if the model rates it no worse and the simulator better
};

// A list of steps, its simulated timeline and its lower bound.
struct ChainPlan {
    StepList list;
    Timeline timeline;
    Seconds lower_bound = 0; // as derived: it may exceed the makespan by rounding
};

// A point of a sweep.
struct PlanFigures : Totals {
    Seconds lower_bound = 0;
    std::optional<Seconds> estimate;
    std::int64_t offloaded = 0; // tensors
};

// Thread-safe.
class ChainPlans {
  public:
    // graph: the chain's, `cut` into pieces or not; a reference is kept. compute: seconds of all runs, as the caller
    // sums them.
    ChainPlans(const Chain& chain, const Graph& graph, bool cut, Seconds compute);
    ~ChainPlans();

    const Graph& graph() const { return graph_; }
    Bytes fluid_least() const; // DYNPROG has a plan from here on if there is a link; bytes, resident included

    // The first tensors in order of release that free enough: GREEDY on the graph's own tensors or pieces.
    TensorFlags release_prefix(const Device& device) const;

    ChainChoice choose(const ChainPlanner& planner, const Device& device, const Progress& progress) const;

    // The no-wait schedule of one set. Throws InfeasibleError or ScheduleError if it does not run.
    ChainPlan plan(const TensorFlags& tensors, const Device& device) const;

    // Choice and plan in one. None if there is no plan, or a message about it: then plan this point on its own.
    std::optional<PlanFigures> figures(const ChainPlanner& planner, const Device& device,
                                       const Progress& progress) const;

  private:
    struct Work; // what one thread needs
    class Lease;

    TensorFlags tensors_of(const std::vector<std::uint8_t>& stages) const;
    TensorFlags greedy(const Device& device) const;
    bool may_fit(const ChainPlanner& planner, const Device& device) const;
    Seconds makespan(const TensorFlags& tensors, const Device& device) const;

    const Graph& graph_;
    FluidSizes sizes_;
    bool cut_;
    std::vector<std::int32_t> stage_;
    std::vector<TensorId> movable_;
    GraphBounds bounds_;
    Bytes peak_, least_; // resident included
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Work>> idle_;
};

// The stage of each tensor of a chain's graph, -1 if it cannot be offloaded: stage k has a^k and tape^k.
std::vector<std::int32_t> stages_of_tensors(const Graph& graph);

} // namespace memsched
