#include "memsched/planners/offload/chain_plans.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace memsched {

struct ChainPlans::Work {
    explicit Work(const Graph& graph) : builder(graph), simulator(graph, {}, 0) {}

    SetBuilder builder;
    StepList list; // of the last set and capacity, which points that differ in the link share
    TensorFlags tensors;
    Bytes capacity = -1;
    bool runs = false;
    Simulator simulator;
};

// Workspace borrowed by a thread and returned to the chain afterwards.
class ChainPlans::Lease {
  public:
    explicit Lease(const ChainPlans& plans) : plans_(plans) {
        const std::lock_guard lock(plans.mutex_);
        if (!plans.idle_.empty()) {
            work_ = std::move(plans.idle_.back());
            plans.idle_.pop_back();
        }
        if (!work_) {
            work_ = std::make_unique<Work>(plans.graph_);
        }
    }
    ~Lease() {
        const std::lock_guard lock(plans_.mutex_);
        plans_.idle_.push_back(std::move(work_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    // The steps of a set, or none if some run has no room.
    const StepList* build(const TensorFlags& tensors, Bytes capacity) {
        Work& work = *work_;
        if (capacity != work.capacity || tensors != work.tensors) {
            work.capacity = -1; // until the list is whole
            work.runs = work.builder.build(tensors, capacity, {}, work.list);
            work.tensors = tensors;
            work.capacity = capacity;
        }
        return work.runs ? &work.list : nullptr;
    }

    Simulator& simulator(const Device& device) {
        work_->simulator.aim(device, device.memory);
        return work_->simulator;
    }

  private:
    const ChainPlans& plans_;
    std::unique_ptr<Work> work_;
};

std::vector<std::int32_t> stages_of_tensors(const Graph& graph) {
    std::vector<std::int32_t> stage(graph.tensors().size(), -1);
    const auto forward = [](const Op& op) { return op.phase == Phase::forward; };
    const auto stages = std::ranges::count_if(graph.ops(), forward);
    for (std::size_t t = 0; t < stage.size(); ++t) {
        const OpId writer = graph.writer(static_cast<TensorId>(t));
        const int layer = writer < 0 ? 0 : graph.op(writer).layer;
        if ((writer < 0 || forward(graph.op(writer))) && layer < stages && graph.tensors()[t].bytes > 0) {
            stage[t] = layer;
        }
    }
    return stage;
}

ChainPlans::ChainPlans(const Chain& chain, const Graph& graph, bool cut, Seconds compute)
    : graph_(graph), sizes_(chain, compute), cut_(cut), stage_(stages_of_tensors(graph)), bounds_(graph),
      peak_(memsched::peak_memory(graph)), least_(memsched::min_memory(graph)) {
    idle_.push_back(std::make_unique<Work>(graph));
    movable_ = idle_[0]->builder.movable();
}

ChainPlans::~ChainPlans() = default;

Bytes ChainPlans::fluid_least() const { return std::min(graph_.resident() + sizes_.least(), peak_); }

TensorFlags ChainPlans::tensors_of(const std::vector<std::uint8_t>& stages) const {
    TensorFlags tensors(stage_.size(), 0);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
        tensors[t] = stage_[t] < 0 ? std::uint8_t{0} : stages[at(stage_[t])];
    }
    return tensors;
}

TensorFlags ChainPlans::release_prefix(const Device& device) const {
    TensorFlags tensors(stage_.size(), 0);
    Bytes excess = peak_ - device.memory;
    for (std::size_t k = 0; k < movable_.size() && excess > 0; ++k) {
        tensors[at(movable_[k])] = 1;
        excess -= graph_.tensor(movable_[k]).bytes;
    }
    return tensors;
}

TensorFlags ChainPlans::greedy(const Device& device) const {
    return cut_ ? release_prefix(device) : tensors_of(sizes_.prefix(peak_ - device.memory));
}

ChainChoice ChainPlans::choose(const ChainPlanner& planner, const Device& device, const Progress& progress) const {
    if (!planner.fluid) {
        return {greedy(device), {}};
    }
    const Bandwidth bandwidth = fluid_bandwidth(device.d2h, device.h2d, sizes_.compute());
    ChainChoice choice;
    if (device.memory >= peak_) {
        choice.model = {{TensorFlags(sizes_.stages(), 0), sizes_.compute(), sizes_.compute(), true, 0}};
    } else {
        choice.model = fluid_solve(sizes_, device.memory - graph_.resident(), bandwidth, *planner.fluid, progress);
    }
    choice.tensors = tensors_of(choice.model->offloaded);
    if (!planner.break_ties) {
        return choice;
    }
    const std::vector<std::uint8_t> prefix = sizes_.prefix(peak_ - device.memory);
    if (prefix == choice.model->offloaded) {
        return choice;
    }
    const FluidChain exact = sizes_.exact(device.memory - graph_.resident(), bandwidth);
    const double speed = 0 < bandwidth && std::isfinite(bandwidth) ? bandwidth : 1;
    if (fluid_makespan(exact, prefix) <= choice.model->makespan * speed * (1 + 1e-12)) {
        TensorFlags other = tensors_of(prefix);
        if (makespan(other, device) < makespan(choice.tensors, device)) {
            choice.tensors = std::move(other);
        }
    }
    return choice;
}

Seconds ChainPlans::makespan(const TensorFlags& tensors, const Device& device) const {
    Lease work(*this);
    const StepList* list = work.build(tensors, device.memory - graph_.resident());
    return list == nullptr ? Simulator::illegal : work.simulator(device).makespan(*list);
}

ChainPlan ChainPlans::plan(const TensorFlags& tensors, const Device& device) const {
    Lease work(*this);
    const StepList* list = work.build(tensors, device.memory - graph_.resident());
    if (list == nullptr) {
        refuse_set(graph_, device.memory);
    }
    return {*list, work.simulator(device).timeline(*list), bounds_.on(device, device.memory).fractional};
}

// Checks before planning.
bool ChainPlans::may_fit(const ChainPlanner& planner, const Device& device) const {
    if (device.memory >= peak_) {
        return true;
    }
    const Bandwidth slowest = std::min(device.d2h, device.h2d);
    const bool no_link = slowest == 0 || static_cast<double>(peak_) > std::numeric_limits<double>::max() * slowest;
    return !no_link && device.memory >= (planner.fluid ? fluid_least() : least_);
}

std::optional<PlanFigures> ChainPlans::figures(const ChainPlanner& planner, const Device& device,
                                               const Progress& progress) const {
    if (!may_fit(planner, device)) {
        return {};
    }
    try {
        const ChainChoice choice = choose(planner, device, progress);
        Bytes sent = 0;
        for (std::size_t t = 0; t < choice.tensors.size(); ++t) {
            sent += choice.tensors[t] ? graph_.tensors()[t].bytes : 0;
        }
        const auto count = std::ranges::count_if(movable_, [&](TensorId t) { return choice.tensors[at(t)] != 0; });
        if (device.host_memory && sent > *device.host_memory) {
            return {};
        }
        Lease work(*this);
        const StepList* list = work.build(choice.tensors, device.memory - graph_.resident());
        if (list == nullptr) {
            return {};
        }
        PlanFigures figures{work.simulator(device).totals(*list), 0, {}, count};
        const Seconds bound = bounds_.on(device, device.memory).fractional;
        figures.lower_bound = std::min(bound, figures.makespan);
        if (choice.model) {
            figures.estimate = choice.model->makespan;
        }
        if (bound <= figures.makespan * (1 + bound_rounding) && std::isfinite(figures.estimate.value_or(0))) {
            return figures;
        }
    } catch (const InfeasibleError&) {
    } catch (const ScheduleError&) {
    } catch (const std::invalid_argument&) {
    }
    return {};
}

} // namespace memsched
