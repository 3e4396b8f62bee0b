// GREEDY and DYNPROG on one chain, for any memory and link: what its points share is prepared once.
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

using TensorFlags = std::vector<std::uint8_t>; // one a tensor: it travels

// A set that travels, and what the planner's own model says of it.
struct ChainChoice {
    TensorFlags tensors;
    std::optional<FluidSolution> model; // of DYNPROG
};

// How a point is planned: by GREEDY, or with `fluid` by DYNPROG.
struct ChainPlanner {
    std::optional<FluidOptions> fluid;
    bool break_ties = true; // DYNPROG takes GREEDY's set where the model values it no less and the simulator more
};

// A list of steps, and what the simulator and the bound say of it.
struct ChainPlan {
    StepList list;
    Timeline timeline;
    Seconds lower_bound = 0; // as it was derived: it may be above the makespan by rounding
};

// A point of a sweep.
struct PlanFigures {
    Seconds makespan = 0, lower_bound = 0, idle = 0;
    std::optional<Seconds> estimate;
    Bytes peak_memory = 0, bytes_out = 0, bytes_in = 0;
    std::int64_t offloaded = 0; // tensors
};

// Any number of threads may ask at once.
class ChainPlans {
  public:
    // graph: the chain's, `cut` into pieces or not; a reference is kept. compute: seconds of all runs, as the caller
    // sums them.
    ChainPlans(const Chain& chain, const Graph& graph, bool cut, Seconds compute);
    ~ChainPlans();

    const Graph& graph() const { return graph_; }
    Bytes fluid_least() const; // from there on DYNPROG has a plan where there is a link; bytes, resident included
    Bytes tensor_bytes(const TensorFlags& tensors) const;

    // Tensors in order of release until what must leave does: GREEDY on the graph's own tensors or pieces.
    TensorFlags release_prefix(const Device& device) const;

    ChainChoice choose(const ChainPlanner& planner, const Device& device, const Progress& progress) const;

    // The no-wait schedule of one set. Throws InfeasibleError or ScheduleError where it does not run.
    ChainPlan plan(const TensorFlags& tensors, const Device& device) const;

    // Choice and plan in one. None where there is no plan, or something to say about it: then ask for one by one.
    std::optional<PlanFigures> figures(const ChainPlanner& planner, const Device& device,
                                       const Progress& progress) const;

  private:
    struct Work; // what one thread needs
    class Lease;

    TensorFlags tensors_of(const std::vector<std::uint8_t>& stages) const;
    TensorFlags greedy(const Device& device) const;
    bool may_fit(const ChainPlanner& planner, const Device& device) const;
    Seconds makespan(const TensorFlags& tensors, const Device& device) const;
    ChainPlan plan(const TensorFlags& tensors, const Device& device, bool blocks) const;

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

// The stage of each tensor of a chain's graph, -1 for what does not travel: block k is a^k and tape^k.
std::vector<std::int32_t> stages_of_tensors(const Graph& graph);

} // namespace memsched
