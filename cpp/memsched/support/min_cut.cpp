#include "memsched/support/min_cut.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr std::int64_t step = 8; // to look at an edge, which is far from the last one in large graphs

} // namespace

void MinCut::add_edge(std::int32_t from, std::int32_t to, Bytes capacity) {
    edges_.push_back({to, first_[at(from)], capacity});
    first_[at(from)] = static_cast<std::int32_t>(edges_.size()) - 1;
    edges_.push_back({from, first_[at(to)], 0});
    first_[at(to)] = static_cast<std::int32_t>(edges_.size()) - 1;
}

// Computes distances from the source; returns whether the sink can be reached.
bool MinCut::label(std::int32_t source, std::int32_t sink, Pace& pace) {
    level_.assign(first_.size(), -1);
    queue_.assign(1, source);
    level_[at(source)] = 0;
    for (std::size_t k = 0; k < queue_.size() && level_[at(sink)] < 0; ++k) {
        std::int64_t seen = 8;
        for (std::int32_t e = first_[at(queue_[k])]; e >= 0; e = edges_[at(e)].next, seen += step) {
            const Edge& edge = edges_[at(e)];
            if (edge.left > 0 && level_[at(edge.to)] < 0) {
                level_[at(edge.to)] = level_[at(queue_[k])] + 1;
                queue_.push_back(edge.to);
            }
        }
        pace.spend(seen);
    }
    return level_[at(sink)] >= 0;
}

// Finds another augmenting path along the labels and returns its flow; 0 if there is none.
Bytes MinCut::push(std::int32_t source, std::int32_t sink, Pace& pace) {
    way_.clear();
    std::int32_t node = source;
    while (node != sink) {
        std::int64_t seen = 4;
        std::int32_t& e = current_[at(node)];
        while (e >= 0 && (edges_[at(e)].left == 0 || level_[at(edges_[at(e)].to)] != level_[at(node)] + 1)) {
            e = edges_[at(e)].next;
            seen += step;
        }
        pace.spend(seen);
        if (e >= 0) {
            way_.push_back(e);
            node = edges_[at(e)].to;
        } else if (way_.empty()) {
            return 0;
        } else { // a dead end: go back, and do not return here
            level_[at(node)] = -1;
            node = edges_[at(way_.back() ^ 1)].to;
            way_.pop_back();
        }
    }
    Bytes carried = unlimited;
    for (const std::int32_t e : way_) {
        carried = std::min(carried, edges_[at(e)].left);
    }
    for (const std::int32_t e : way_) {
        edges_[at(e)].left -= carried;
        edges_[at(e ^ 1)].left += carried;
        pushed_.emplace_back(e, carried);
    }
    return carried;
}

Bytes MinCut::solve(std::int32_t source, std::int32_t sink, Bytes enough, Pace& pace) {
    Bytes total = 0;
    while (total < enough && label(source, sink, pace)) {
        current_ = first_;
        for (Bytes more = push(source, sink, pace); more > 0 && total < enough; more = push(source, sink, pace)) {
            total += more;
        }
    }
    return std::min(total, enough);
}

void MinCut::reset(const std::vector<Bytes>& capacities) {
    for (std::size_t e = 0; e < capacities.size(); ++e) {
        edges_[2 * e].left = capacities[e];
        edges_[2 * e + 1].left = 0;
    }
    pushed_.clear();
}

void MinCut::take_back() {
    for (const auto& [e, carried] : pushed_) {
        edges_[at(e)].left += carried;
        edges_[at(e ^ 1)].left -= carried;
    }
    pushed_.clear();
}

// The nodes that a search from `start` finds along edges with capacity left, or against them if `reverse` is 1.
std::vector<std::uint8_t> MinCut::found_from(std::int32_t start, std::int32_t reverse) const {
    std::vector<std::uint8_t> found(first_.size(), 0);
    std::vector<std::int32_t> stack{start};
    found[at(start)] = 1;
    while (!stack.empty()) {
        const std::int32_t node = stack.back();
        stack.pop_back();
        for (std::int32_t e = first_[at(node)]; e >= 0; e = edges_[at(e)].next) {
            const std::int32_t next = edges_[at(e)].to;
            if (edges_[at(e ^ reverse)].left > 0 && !found[at(next)]) {
                found[at(next)] = 1;
                stack.push_back(next);
            }
        }
    }
    return found;
}

std::size_t MinCut::bytes() const {
    std::size_t ids = 0;
    for (const auto* list : {&first_, &level_, &current_, &queue_, &way_}) {
        ids += list->capacity();
    }
    return sizeof(Edge) * edges_.capacity() + sizeof(std::int32_t) * ids + sizeof(pushed_[0]) * pushed_.capacity();
}

} // namespace memsched
