#include "memsched/planners/classes/class_walk.h"

#include "memsched/support/late_acceptance.h"

#include <random>
#include <utility>

namespace memsched {
namespace {

constexpr std::int64_t moves_until_return = 30; // per map, without a better plan

// Changes the class of one to three maps, of one map twice as often as of two or three.
void change(std::vector<MapClass>& classes, std::mt19937_64& random) {
    const std::uint64_t roll = random() % 4;
    for (std::uint64_t left = roll < 2 ? 1 : roll; left > 0; --left) {
        MapClass& one = classes[random() % classes.size()];
        one = static_cast<MapClass>((static_cast<std::uint64_t>(one) + 1 + random() % 2) % 3);
    }
}

} // namespace

ClassSolution improve_classes(const Graph& graph, const Device& device, ClassSolution start, std::uint64_t seed,
                              std::int64_t& evaluations, const Progress& progress) {
    Workers alone(1);
    ClassSearch search(graph, device, alone, progress);
    ClassSolution best = std::move(start), current = best, next;
    if (best.classes.empty()) {
        return best;
    }
    std::mt19937_64 random(seed);
    LateAcceptance walk(64);
    walk.restart(best.makespan);
    std::int64_t waited = 0;
    const auto between = static_cast<std::int64_t>(search.between_stops());
    for (std::int64_t move = 0; move % between != 0 || !search.stopped(1); ++move) {
        next = {current.classes, {}, 0};
        change(next.classes, random);
        next.makespan = search.makespan(next.classes);
        if (walk.accept(next.makespan)) {
            std::swap(current, next);
        }
        ++waited;
        if (clearly_less(current.makespan, best.makespan)) {
            best = current;
            waited = 0;
        } else if (waited > moves_until_return * static_cast<std::int64_t>(best.classes.size())) {
            current = best;
            walk.restart(best.makespan);
            waited = 0;
        }
    }
    evaluations += search.evaluations();
    return best;
}

} // namespace memsched
