#include "memsched/planners/classes/baselines.h"

namespace memsched {

ClassSolution swap_all(const Graph& graph, const Device& device, bool scheduled) {
    Workers alone(1);
    const Progress unheard;
    ClassSearch search(graph, device, alone, unheard);
    const std::vector<MapClass> swapped(search.maps().size(), MapClass::swap);
    if (scheduled) {
        return search.with_best_rule(swapped);
    }
    ClassSolution all{swapped, {FetchRule::Kind::layers}, 0};
    all.makespan = search.makespan(all.classes, all.rule);
    return all;
}

ClassSolution by_kind(const Graph& graph, const Device& device, const Progress& progress) {
    Workers alone(1);
    ClassSearch search(graph, device, alone, progress);
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
