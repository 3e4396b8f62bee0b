#include "memsched/simulate/cycle_ratio.h"

namespace memsched {
namespace {

// Longest paths from one node at a given ratio, by sweeps over all arcs. If the ratio is too small, they run in a
// circle.
class LongestPaths {
  public:
    LongestPaths(const Rows<Arc>& into, std::int32_t source, Seconds ratio, Seconds least_gain)
        : into_(into), longest_(into.size(), -never), last_(into.size(), nullptr), ratio_(ratio),
          least_gain_(least_gain) {
        longest_[at(source)] = 0;
    }

    bool sweep() { // whether a path became longer
        bool longer = false;
        for (std::size_t node = 0; node < into_.size(); ++node) {
            for (const Arc& arc : into_[node]) {
                const Seconds path = longest_[at(arc.from)] + arc.weight - ratio_ * arc.borders;
                if (path > longest_[node] + least_gain_) {
                    longest_[node] = path;
                    last_[node] = &arc;
                    longer = true;
                }
            }
        }
        return longer;
    }

    // A node of a cycle of last arcs, or -1.
    std::int32_t node_of_cycle() const {
        std::vector<std::int32_t> seen(last_.size(), -1); // from which node on
        for (std::size_t first = 0; first < last_.size(); ++first) {
            auto node = static_cast<std::int32_t>(first);
            for (; seen[at(node)] < 0 && last_[at(node)]; node = last_[at(node)]->from) {
                seen[at(node)] = static_cast<std::int32_t>(first);
            }
            if (last_[at(node)] && seen[at(node)] == static_cast<std::int32_t>(first)) {
                return node;
            }
        }
        return -1;
    }

    Seconds ratio_of_cycle(std::int32_t node) const {
        Seconds weight = 0;
        std::int32_t borders = 0;
        std::int32_t from = node;
        do {
            weight += last_[at(from)]->weight;
            borders += last_[at(from)]->borders;
            from = last_[at(from)]->from;
        } while (from != node);
        return weight / borders;
    }

    std::vector<Seconds> take() { return std::move(longest_); }

  private:
    const Rows<Arc>& into_;
    std::vector<Seconds> longest_;
    std::vector<const Arc*> last_; // of the longest path found to each node
    Seconds ratio_, least_gain_;
};

} // namespace

CycleRatio largest_ratio(const Rows<Arc>& into, std::int32_t node, Seconds ratio, Seconds least_gain, Pace& pace) {
    for (;;) {
        LongestPaths paths(into, node, ratio, least_gain);
        std::int32_t found = -1;
        for (std::size_t sweeps = 0; sweeps <= into.size() && found < 0 && paths.sweep(); ++sweeps) {
            pace.spend(static_cast<std::int64_t>(into.size()));
            found = paths.node_of_cycle();
        }
        const Seconds better = found < 0 ? ratio : paths.ratio_of_cycle(found);
        if (better <= ratio) { // a cycle that gains by rounding alone is none
            return {ratio, paths.take()};
        }
        ratio = better;
        node = found;
    }
}

} // namespace memsched
