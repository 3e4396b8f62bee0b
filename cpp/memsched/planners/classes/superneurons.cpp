#include "memsched/planners/classes/superneurons.h"

#include "memsched/planners/classes/class_search.h"

namespace memsched {

ClassSolution superneurons(const Graph& graph, const Device& device, Bytes budget, const Progress& progress) {
    Workers alone(1);
    ClassSearch search(graph, device, budget, alone, progress);
    const std::vector<TensorId>& maps = search.maps();
    ClassSolution found{std::vector<MapClass>(maps.size(), MapClass::keep), {FetchRule::Kind::convolutions}, 0};
    const FetchRule on_demand{FetchRule::Kind::demand};
    bool fits = search.makespan(found.classes, on_demand) < Simulator::illegal;
    for (std::size_t m = 0; m < maps.size() && !fits; ++m) {
        if (search.stopped(static_cast<double>(m) / static_cast<double>(maps.size()))) {
            throw Stopped{};
        }
        const bool convolution = graph.op(graph.writer(maps[m])).kind == "conv";
        found.classes[m] = convolution ? MapClass::swap : MapClass::recompute;
        fits = search.makespan(found.classes, on_demand) < Simulator::illegal;
    }
    found.makespan = fits ? search.makespan(found.classes, found.rule) : Simulator::illegal;
    if (found.makespan == Simulator::illegal && search.stopped(1)) {
        throw Stopped{};
    }
    return found;
}

} // namespace memsched
