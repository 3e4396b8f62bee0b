#include "memsched/build/makespans.h"

#include "memsched/simulate/simulate.h"

#include <algorithm>
#include <stdexcept>

namespace memsched {
namespace {

// Whether all forward ops ran back to back.
bool forward_without_stall(const Graph& graph, const StepList& list, std::span<const Seconds> ends) {
    Seconds busy = 0, last = 0;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Step& step = list.steps[k];
        if (step.verb == Verb::run && graph.op(step.id).phase == Phase::forward) {
            busy += graph.op(step.id).choices[at(step.choice)].time;
            last = ends[k];
        }
    }
    return last <= busy * (1 + 1e-9);
}

} // namespace

std::vector<Seconds> offload_set_makespans(const Graph& graph, const Device& device, Bytes budget,
                                           std::span<const std::uint8_t> rows, const FetchRule& rule, bool stall,
                                           const Progress& progress) {
    const std::size_t width = graph.tensors().size();
    if (width == 0 || rows.size() % width != 0) {
        throw std::invalid_argument("rows must hold one flag for each of the " + std::to_string(width) + " tensors");
    }
    const std::size_t count = rows.size() / width;
    SetBuilder builder(graph);
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    Simulator simulator(graph, device, budget);
    std::vector<Seconds> makespans(count, Simulator::illegal);
    StepList list;
    for (std::size_t r = 0; r < count; ++r) {
        if (progress.tick(static_cast<double>(r) / static_cast<double>(count))) {
            break;
        }
        if (!builder.build(rows.subspan(r * width, width), capacity, rule, list)) {
            continue;
        }
        const Seconds makespan = simulator.makespan(list);
        if (stall || forward_without_stall(graph, list, simulator.ends())) {
            makespans[r] = makespan;
        }
    }
    return makespans;
}

std::vector<Seconds> prefix_makespans(const Graph& graph, const Device& device, std::span<const std::int64_t> counts,
                                      std::span<const int> layers, bool any, const Progress& progress) {
    ClassBuilder plans(graph);
    Simulator simulator(graph, device, device.memory);
    StepList list;
    std::vector<MapClass> classes(plans.maps().size());
    std::vector<Seconds> found(counts.size() * layers.size(), Simulator::illegal);
    for (std::size_t k = 0; k < counts.size(); ++k) {
        const auto travels = std::clamp<std::ptrdiff_t>(counts[k], 0, static_cast<std::ptrdiff_t>(classes.size()));
        std::fill(classes.begin(), classes.begin() + travels, MapClass::swap);
        std::fill(classes.begin() + travels, classes.end(), MapClass::keep);
        for (std::size_t row = 0; row < layers.size(); ++row) {
            if (progress.tick(static_cast<double>(k) / static_cast<double>(counts.size()))) {
                return found;
            }
            const FetchRule rule{FetchRule::Kind::layers, layers[row]};
            if (plans.build(classes, device.memory - graph.resident(), rule, list)) {
                found[row * counts.size() + k] = simulator.makespan(list);
                if (any && found[row * counts.size() + k] < Simulator::illegal) {
                    return found;
                }
            }
        }
    }
    return found;
}

} // namespace memsched
