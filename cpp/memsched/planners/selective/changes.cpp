#include "memsched/planners/selective/changes.h"

#include "memsched/planners/selective/whole_step.h"
#include "memsched/support/mix.h"

#include <algorithm>
#include <array>

namespace memsched {
namespace {

constexpr std::size_t few_gaps = 200; // up to here, classes change rather than prices
constexpr std::uint64_t alike_every = 8, slack_every = 16, hosts_every = 8;

} // namespace

Changes::Changes(const Graph& graph, const std::vector<Gap>& gaps, bool linked)
    : graph_(graph), gaps_(gaps), linked_(linked) {
    if (linked && graph.persistent()) {
        hosts_ = latest_on_host(graph);
    }
    double sum = 0;
    for (std::size_t g = 0; g < gaps.size(); ++g) {
        if (!linked && !graph.repeatable(gaps[g].tensor)) {
            continue;
        }
        open_.push_back(g);
        sums_.push_back(sum += static_cast<double>(graph.tensor(gaps[g].tensor).bytes));
        if (linked && graph.persistent()) {
            alike_[kind_of(g)].push_back(g);
        }
    }
}

// The bytes of its tensor, and how many gaps of the tensor come before.
Changes::Kind Changes::kind_of(std::size_t gap) const {
    const TensorId tensor = gaps_[gap].tensor;
    std::size_t before = 0;
    for (; before < gap && gaps_[gap - before - 1].tensor == tensor; ++before) {
    }
    return {graph_.tensor(tensor).bytes, before};
}

std::size_t Changes::pick(std::mt19937_64& random) const {
    if (random() % 2) {
        return open_[random() % open_.size()];
    }
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), share(random) * sums_.back());
    return open_[std::min(static_cast<std::size_t>(found - sums_.begin()), open_.size() - 1)];
}

MapClass Changes::other(std::size_t gap, MapClass now, std::mt19937_64& random) const {
    const bool again = graph_.repeatable(gaps_[gap].tensor);
    if (again && linked_) {
        return static_cast<MapClass>((static_cast<int>(now) + 1 + static_cast<int>(random() % 2)) % 3);
    }
    const MapClass away = again ? MapClass::recompute : MapClass::swap;
    return now == MapClass::keep ? away : MapClass::keep;
}

// A range of gaps that are alike. One state more on the host at the border may be no gain, and all of them one.
void Changes::change_alike(Decisions& what, std::mt19937_64& random) const {
    const std::size_t gap = pick(random);
    const std::vector<std::size_t>& group = alike_.at(kind_of(gap));
    const std::size_t begin = random() % group.size(), end = begin + 1 + random() % (group.size() - begin);
    const MapClass next = other(gap, what.classes[gap], random);
    for (std::size_t k = begin; k < end; ++k) {
        what.classes[group[k]] = next;
    }
}

// A range of the groups, one alone, or one of its ops goes to the other place.
void Changes::change_hosted(Decisions& what, std::mt19937_64& random) const {
    what.hosted.resize(graph_.ops().size(), 0);
    const std::size_t begin = random() % hosts_.size();
    const std::size_t end = random() % 2 ? begin + 1 : begin + 1 + random() % (hosts_.size() - begin);
    if (hosts_[begin].size() > 1 && random() % 4 == 0) {
        const OpId op = hosts_[begin][random() % hosts_[begin].size()];
        what.hosted[at(op)] = what.hosted[at(op)] ? 0 : 1;
        return;
    }
    const std::uint8_t other = what.hosted[at(hosts_[begin].back())] ? 0 : 1;
    for (std::size_t k = begin; k < end; ++k) {
        for (const OpId op : hosts_[k]) {
            what.hosted[at(op)] = other;
        }
    }
}

void Changes::change(Decisions& what, std::mt19937_64& random) const {
    if (!hosts_.empty() && (open_.empty() || random() % hosts_every == 0)) {
        change_hosted(what, random);
        return;
    }
    if (!alike_.empty() && random() % alike_every == 0) {
        change_alike(what, random);
        return;
    }
    if (!alike_.empty() && random() % slack_every == 0) {
        what.slack = most_slack * share(random);
        return;
    }
    const auto kind = random() % 10;
    const bool few = count() <= few_gaps;
    if (kind < (few ? 1 : 2)) {
        for (float& weight : what.weights) {
            weight *= static_cast<float>(0.9 + 0.2 * share(random));
        }
    } else if (kind < (few ? 3 : 7)) {
        constexpr std::array factors{0.25F, 0.5F, 0.75F, 1.5F, 2.0F, 4.0F};
        for (auto left = 1 + random() % 3; left > 0; --left) {
            what.weights[at(gaps_[pick(random)].tensor)] *= factors[random() % factors.size()];
        }
    } else {
        for (auto left = 1 + random() % 2; left > 0; --left) {
            const std::size_t gap = pick(random);
            what.classes[gap] = other(gap, what.classes[gap], random);
        }
    }
}

} // namespace memsched
