// The largest cycle ratio against all simple cycles of small random graphs.
#include "memsched/simulate/cycle_ratio.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace memsched;

namespace {

using Arcs = std::vector<std::vector<Arc>>;

// The largest ratio of the simple cycles through `first` and later nodes, against the direction of the arcs.
double largest_from(const Arcs& into, std::int32_t first, std::int32_t node, std::vector<bool>& on_path, double weight,
                    std::int32_t borders) {
    double best = 0;
    on_path[at(node)] = true;
    for (const Arc& arc : into[at(node)]) {
        if (arc.from == first && borders + arc.borders > 0) {
            best = std::max(best, (weight + arc.weight) / (borders + arc.borders));
        } else if (arc.from > first && !on_path[at(arc.from)]) {
            best = std::max(best,
                            largest_from(into, first, arc.from, on_path, weight + arc.weight, borders + arc.borders));
        }
    }
    on_path[at(node)] = false;
    return best;
}

} // namespace

TEST_CASE("the largest cycle ratio is that of all simple cycles, and the paths from it cannot be longer") {
    std::mt19937 numbers(7);
    const auto below = [&](int count) { return static_cast<std::int32_t>(numbers() % static_cast<unsigned>(count)); };
    for (int round = 0; round < 2000; ++round) {
        const std::int32_t n = 2 + below(5);
        Arcs into(at(n));
        for (std::int32_t node = 0; node < n; ++node) { // a ring over one border, and some arcs more
            into[at(node)].push_back({node == 0 ? n - 1 : node - 1, 1.0 * below(9), node == 0});
            for (int more = below(3); more > 0; --more) {
                const std::int32_t from = below(n);
                into[at(node)].push_back({from, 1.0 * below(9), (from >= node) + below(2)});
            }
        }
        double ring = 0, best = 0;
        for (std::int32_t node = 0; node < n; ++node) {
            std::vector<bool> on_path(at(n));
            ring += into[at(node)][0].weight;
            best = std::max(best, largest_from(into, node, node, on_path, 0, 0));
        }
        const Progress progress;
        Pace pace(progress);
        Rows<Arc> rows;
        for (const std::vector<Arc>& arcs : into) {
            rows.add_row();
            std::ranges::for_each(arcs, [&](const Arc& arc) { rows.push_back(arc); });
        }
        const CycleRatio found = largest_ratio(rows, 0, ring, 1e-12, pace);
        REQUIRE(found.ratio == doctest::Approx(best));
        for (std::int32_t node = 0; node < n; ++node) { // each node is reached by an arc that is tight
            double longest = -never;
            for (const Arc& arc : into[at(node)]) {
                longest = std::max(longest, found.longest[at(arc.from)] + arc.weight - found.ratio * arc.borders);
            }
            CHECK(longest == doctest::Approx(found.longest[at(node)]));
        }
    }
}
