#include "memsched/planners/classes/vdnn_sync.h"

#include "memsched/model/fixed_choices.h"
#include "memsched/simulate/simulate.h"

namespace memsched {
namespace {

// Bytes of the prefetches that are issued with the run at position k.
Bytes issued_with(const Graph& graph, const StepList& list, std::size_t k) {
    Bytes sum = 0;
    for (++k; k < list.steps.size() && list.steps[k].verb != Verb::run; ++k) {
        sum += list.steps[k].verb == Verb::prefetch ? graph.tensor(list.steps[k].id).bytes : 0;
    }
    return sum;
}

// For each run: the fastest algorithm that finds room and, in the forward, the wait for the previous run's offloads.
void synchronise(const Graph& graph, Bytes capacity, StepList& list) {
    Bytes live = source_bytes(graph);
    std::vector<StepId> offloads;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        Step& step = list.steps[k];
        if (step.verb == Verb::offload) {
            offloads.push_back(static_cast<StepId>(k));
        } else if (step.verb == Verb::prefetch) {
            live += graph.tensor(step.id).bytes;
        } else if (step.verb == Verb::free) {
            live -= graph.tensor(step.id).bytes;
        } else {
            const Op& op = graph.op(step.id);
            live += written_bytes(graph, op);
            step.choice = fastest_within(op, false, capacity - live - issued_with(graph, list, k));
            if (!offloads.empty()) {
                step.after = static_cast<StepId>(list.after.size());
                list.after.push_back(std::move(offloads));
                offloads.clear();
            }
        }
    }
}

} // namespace

std::vector<MapClass> vdnn_classes(const Graph& graph, const Lifetimes& lifetimes, bool convolutions) {
    std::vector<std::uint8_t> read(graph.tensors().size(), 0);
    for (OpId id = 0; id < lifetimes.turn; ++id) {
        const Op& op = graph.op(id);
        if (convolutions ? op.kind == "conv" : op.kind != "fc") {
            for (const TensorId t : op.reads) {
                read[at(t)] = 1;
            }
        }
    }
    std::vector<MapClass> classes;
    for (const TensorId t : feature_maps(graph, lifetimes)) {
        classes.push_back(read[at(t)] ? MapClass::swap : MapClass::keep);
    }
    return classes;
}

VdnnSolution vdnn_sync(const Graph& graph, const Device& device, bool stays) {
    const FixedChoices baseline = fix_choices(graph, -1);
    const Bytes capacity = device.memory - graph.resident();
    ClassBuilder plans(baseline.graph);
    Simulator simulator(graph, device, device.memory);
    const FetchRule rule{FetchRule::Kind::layers, 1, true};
    VdnnSolution best{{}, false, Simulator::illegal};
    for (const bool convolutions : {false, true}) {
        StepList list;
        const auto classes = stays ? std::vector(plans.maps().size(), MapClass::keep)
                                   : vdnn_classes(graph, plans.lifetimes(), convolutions);
        if (plans.build(classes, capacity, rule, list)) {
            synchronise(graph, capacity, list);
            const Seconds makespan = simulator.makespan(list);
            if (makespan < best.makespan) {
                best = {std::move(list), convolutions, makespan};
            }
        }
    }
    return best;
}

} // namespace memsched
