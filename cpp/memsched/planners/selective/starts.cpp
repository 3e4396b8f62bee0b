#include "memsched/planners/selective/starts.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr int prices = 40; // from a tenth of a thousandth of a typical price to a hundred times it

} // namespace

RankedCuts::RankedCuts(const Graph& graph, OpId p, const Device& device, Bytes capacity, Seconds total, Pace& pace)
    : graph_(graph), retention_(graph, p, Retention::Order::listed), capacity_(capacity),
      fixed_(flags_of(graph.tensors().size(), graph.op(p).reads)) {
    RetentionCurve curve(graph, p, Retention::Order::listed, device, capacity, total);
    std::vector<Seconds> asked;
    if (const Seconds best = curve.refine(24, {}, pace).price; best > 0) {
        asked = {best * (1 - 1e-6), best * (1 + 1e-6)};
    }
    const double typical =
        (retention_.before() + retention_.after()) / static_cast<double>(std::max<Bytes>(retention_.needed(), 1));
    for (int k = 0; k < prices; ++k) {
        asked.push_back(typical * 1e-4 * std::pow(1e6, static_cast<double>(k) / (prices - 1)));
    }
    std::ranges::sort(asked);
    std::vector<std::uint8_t> seen(graph.ops().size(), 0);
    std::size_t rank = 0;
    for (const Seconds price : asked) {
        retention_.cheapest(price, pace);
        if (rank == 0) { // whatever is wanted is held or made again: without price all is held
            needed_ = flags_of(fixed_.size(), retention_.held());
        }
        ++rank;
        for (const OpId op : retention_.again()) {
            if (!seen[at(op)]) {
                seen[at(op)] = 1;
                ranked_.emplace_back(rank, op);
            }
        }
    }
    std::ranges::sort(ranked_);
}

RankedCuts::Plan RankedCuts::plan(const std::vector<Gap>& gaps, std::size_t again, Bytes away, bool late) const {
    std::vector<std::uint8_t> runs(graph_.ops().size(), 0);
    for (std::size_t k = 0; k < again; ++k) {
        runs[at(ranked_[k].second)] = 1;
    }
    if (late && again > 0) { // the same number of the last price, from its other end
        const std::size_t rank = ranked_[again - 1].first;
        std::size_t first = again - 1, beyond = again;
        for (; first > 0 && ranked_[first - 1].first == rank; --first) {
        }
        for (; beyond < ranked_.size() && ranked_[beyond].first == rank; ++beyond) {
        }
        for (std::size_t k = first; k < beyond; ++k) {
            runs[at(ranked_[k].second)] = k >= beyond - (again - first);
        }
    }
    // What is wanted, from p back: needed tensors, and the reads of what runs again.
    std::vector<std::uint8_t> wanted = needed_;
    for (OpId op = retention_.op() - 1; op >= 0; --op) {
        const auto is_wanted = [&](TensorId t) { return wanted[at(t)] != 0; };
        runs[at(op)] = runs[at(op)] && std::ranges::any_of(graph_.op(op).writes, is_wanted);
        for (const TensorId t : runs[at(op)] ? graph_.op(op).reads : std::vector<TensorId>{}) {
            wanted[at(t)] |= !fixed_[at(t)];
        }
    }
    Plan made{std::vector<MapClass>(gaps.size(), MapClass::keep), retention_.reads(), 0};
    std::vector<std::size_t> stays;
    for (std::size_t g = 0; g < gaps.size(); ++g) {
        const Gap& gap = gaps[g];
        if (gap.from >= retention_.op() || gap.to <= retention_.op()) {
            continue;
        }
        const OpId writer = graph_.writer(gap.tensor);
        if (writer >= 0 && runs[at(writer)]) {
            made.classes[g] = MapClass::recompute;
        } else if (wanted[at(gap.tensor)]) {
            made.held += graph_.tensor(gap.tensor).bytes;
            stays.push_back(g);
        }
    }
    std::ranges::stable_sort(stays, {}, [&](std::size_t g) { return gaps[g].from; }); // what may leave first
    for (const std::size_t g : stays) {
        if (made.away >= away) {
            break;
        }
        made.classes[g] = MapClass::swap;
        made.away += graph_.tensor(gaps[g].tensor).bytes;
    }
    return made;
}

void RankedCuts::search(const std::vector<Gap>& gaps, bool linked,
                        const std::function<Seconds(const std::vector<MapClass>&)>& ask,
                        const std::function<bool()>& stopped) const {
    const auto count = static_cast<double>(ranked_.size());
    struct Point {
        double again = 1, away = 0; // shares: of the ops, of the bytes in excess
        bool late = false;
    };
    Point best;
    Seconds least = never;
    const auto try_point = [&](const Point& point) {
        if (stopped()) {
            return;
        }
        const double share = std::clamp(point.again, 0.0, 1.0);
        const auto runs = static_cast<std::size_t>(std::llround(share * count));
        Plan planned = plan(gaps, runs, 0, point.late);
        const auto held = static_cast<double>(planned.held);
        const double over = std::max(held - static_cast<double>(room()), 0.0);
        const double bytes = over * (1 + point.away) + std::max(0.0, point.away) * 0.02 * held;
        if (linked && bytes > 0) {
            planned = plan(gaps, runs, static_cast<Bytes>(bytes), point.late);
        }
        const Seconds found = ask(planned.classes);
        if (found < least) {
            least = found;
            best = point;
            best.again = share;
        }
    };
    const std::vector<double> aways = linked ? std::vector{-1.0, 0.0, 0.1, 0.4, 1.0} : std::vector{0.0};
    for (int k = 0; k <= 20; ++k) {
        for (const double away : aways) {
            try_point({k / 20.0, away, false});
            try_point({k / 20.0, away, true});
        }
    }
    if (least == never) {
        return;
    }
    for (double step = 1 / 20.0; step * count > 0.5; step /= 2) {
        for (const double sign : {-1.0, 1.0}) {
            Point next = best;
            next.again += sign * step;
            try_point(next);
            next = best;
            next.away += 4 * sign * step;
            if (linked) {
                try_point(next);
            }
        }
    }
}

} // namespace memsched
