#include "memsched/planners/remat/pofo_front.h"

#include <algorithm>
#include <tuple>

namespace memsched {

PofoFront::PofoFront(const SegmentTable& table, const PofoOptions& options, int beam)
    : width_(static_cast<double>(table.width())), d2h_(options.linked() ? options.d2h : 1),
      h2d_(options.linked() ? options.h2d : 1), beam_(beam), waiting_(2 * (at(table.chain().layers) + 2)) {}

// With everything in slots: the cheapest label of each state, the first of equals.
void PofoFront::merge(Waiting& waiting) const {
    std::vector<PofoLabel>& labels = waiting.labels;
    const auto slots = [&](double bytes) { return static_cast<std::int64_t>(bytes / width_ + 0.5); };
    const auto key = [&](const PofoLabel& l) {
        return std::tuple(l.state.held, slots(l.state.leaving), slots(l.state.arriving));
    };
    std::ranges::stable_sort(labels, {}, [&](const PofoLabel& l) { return std::pair(key(l), l.cost); });
    const auto same = [&](const PofoLabel& a, const PofoLabel& b) { return key(a) == key(b); };
    labels.erase(std::unique(labels.begin(), labels.end(), same), labels.end());
    waiting.merge_from = std::max(waiting.merge_from, 2 * labels.size());
}

std::vector<std::int32_t> PofoFront::take(int layer, bool all, const PofoBound& bound, Seconds limit) {
    Waiting here;
    std::swap(here, waiting(layer, all));
    if (beam_ == 0) {
        merge(here);
    }
    const std::vector<PofoLabel>& labels = here.labels;
    std::vector<std::pair<Seconds, std::size_t>> order;
    for (std::size_t at = 0; at < labels.size(); ++at) {
        const Seconds least = labels[at].cost + bound.remaining(layer, all, labels[at].state);
        if (least < limit * (1 + bound.slack())) {
            order.emplace_back(least, at);
        }
    }
    std::ranges::sort(order);
    std::vector<std::int32_t> ids;
    for (const auto& [least, at] : order) {
        if (beam_ > 0 && static_cast<int>(ids.size()) == beam_) {
            break;
        }
        const PofoLabel& b = labels[at];
        const auto dominates = [&](std::int32_t id) {
            const PofoLabel& a = label(id);
            return a.state.held <= b.state.held && a.cost + std::max(0.0, a.state.leaving - b.state.leaving) / d2h_ +
                                                           std::max(0.0, a.state.arriving - b.state.arriving) / h2d_ <=
                                                       b.cost;
        };
        if (beam_ == 0 || std::ranges::none_of(ids, dominates)) {
            ids.push_back(static_cast<std::int32_t>(kept_.size()));
            kept_.push_back(b);
        }
    }
    return ids;
}

} // namespace memsched
