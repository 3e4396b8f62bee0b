#include "memsched/steps/class_sets.h"

#include "memsched/simulate/simulate.h"

#include <algorithm>

namespace memsched {

std::vector<Seconds> prefix_makespans(const Graph& graph, const Device& device, std::span<const std::int64_t> counts,
                                      std::span<const int> layers, bool any, const Progress& progress) {
    ClassPlans plans(graph);
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
