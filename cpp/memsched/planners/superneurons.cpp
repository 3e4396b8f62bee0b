#include "memsched/planners/superneurons.h"

#include "memsched/planners/class_search.h"

namespace memsched {

ClassSolution superneurons(const Graph& graph, const Device& device, Bytes budget) {
    Workers alone(1);
    const Progress unheard;
    ClassSearch search(graph, device, budget, alone, unheard);
    const std::vector<TensorId>& maps = search.maps();
    ClassSolution found{std::vector<MapClass>(maps.size(), MapClass::keep), {FetchRule::Kind::layers}, 0};
    found.rule.convolutions = true;
    const FetchRule on_demand{FetchRule::Kind::demand};
    bool fits = search.makespan(found.classes, on_demand) < Simulator::illegal;
    for (std::size_t m = 0; m < maps.size() && !fits; ++m) {
        const bool convolution = graph.op(graph.writer(maps[m])).kind == "conv";
        found.classes[m] = convolution ? MapClass::swap : MapClass::recompute;
        fits = search.makespan(found.classes, on_demand) < Simulator::illegal;
    }
    found.makespan = fits ? search.makespan(found.classes, found.rule) : Simulator::illegal;
    return found;
}

} // namespace memsched
