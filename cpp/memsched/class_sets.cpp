#include "memsched/class_sets.h"

#include "memsched/simulate.h"

namespace memsched {

std::vector<Seconds> class_makespans(const Graph& graph, const Device& device, std::span<const MapClass> rows,
                                     const FetchRule& rule, const Progress& progress) {
    ClassPlans plans(graph);
    Simulator simulator(graph, device, device.memory);
    StepList list;
    const std::size_t width = plans.maps().size();
    std::vector<Seconds> found(width > 0 ? rows.size() / width : 1, Simulator::illegal);
    for (std::size_t k = 0; k < found.size(); ++k) {
        if (progress.tick(static_cast<double>(k) / static_cast<double>(found.size()))) {
            break;
        }
        if (plans.build(rows.subspan(k * width, width), device.memory - graph.resident(), rule, list)) {
            found[k] = simulator.makespan(list);
        }
    }
    return found;
}

} // namespace memsched
