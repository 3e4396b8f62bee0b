#include "memsched/planners/classes/swap_all.h"

namespace memsched {

ClassSolution swap_all(const Graph& graph, const Device& device, Bytes budget, bool scheduled) {
    Workers alone(1);
    const Progress unheard;
    ClassSearch search(graph, device, budget, alone, unheard);
    const std::vector<MapClass> swapped(search.maps().size(), MapClass::swap);
    if (scheduled) {
        return search.with_best_rule(swapped);
    }
    ClassSolution all{swapped, {FetchRule::Kind::layers}, 0};
    all.makespan = search.makespan(all.classes, all.rule);
    return all;
}

} // namespace memsched
