#include "memsched/steps/offload_sets.h"

#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

#include <stdexcept>

namespace memsched {
namespace {

// Whether all forward ops ran back to back.
bool forward_without_stall(const Graph& graph, const StepList& list, std::span<const Seconds> ends) {
    Seconds busy = 0, last = 0;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Step& step = list.steps[k];
        if (step.verb == Verb::run && graph.op(step.id).phase == Phase::forward) {
            busy += graph.op(step.id).choices[static_cast<std::size_t>(step.choice)].time;
            last = ends[k];
        }
    }
    return last <= busy * (1 + 1e-9);
}

} // namespace

std::vector<Seconds> offload_set_makespans(const Graph& graph, const Device& device, Bytes budget,
                                           std::span<const std::uint8_t> rows, const PrefetchRule& rule, bool stall,
                                           const Progress& progress) {
    const std::size_t width = graph.tensors().size();
    if (width == 0 || rows.size() % width != 0) {
        throw std::invalid_argument("rows must hold one flag for each of the " + std::to_string(width) + " tensors");
    }
    const std::size_t count = rows.size() / width;
    OffloadSteps builder(graph, std::min(budget, device.memory) - graph.resident());
    Simulator simulator(graph, device, budget);
    std::vector<Seconds> makespans(count, Simulator::illegal);
    std::vector<std::uint8_t> travels(width);
    StepList list;
    for (std::size_t r = 0; r < count; ++r) {
        if (progress.tick(static_cast<double>(r) / static_cast<double>(count))) {
            break;
        }
        travels.assign(rows.begin() + static_cast<std::ptrdiff_t>(r * width),
                       rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
        if (!builder.build(travels, rule, list)) {
            continue;
        }
        const Seconds makespan = simulator.makespan(list);
        if (stall || forward_without_stall(graph, list, simulator.ends())) {
            makespans[r] = makespan;
        }
    }
    return makespans;
}

StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const PrefetchRule& rule) {
    StepList list;
    if (travels.size() != graph.tensors().size()) {
        throw std::invalid_argument("travels must hold one flag for each tensor");
    }
    if (!OffloadSteps(graph, budget - graph.resident()).build(travels, rule, list)) {
        throw InfeasibleError("the offload set leaves some op without room in " + std::to_string(budget) + " bytes",
                              min_memory(graph));
    }
    return list;
}

} // namespace memsched
