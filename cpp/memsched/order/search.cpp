#include "memsched/order/search.h"

#include "memsched/support/mix.h"

#include <algorithm>

namespace memsched::order {

Search::Search(const Problem& problem, Bytes lower, Bytes upper, Pace& pace, Effort effort)
    : pace_(pace), state_(problem), closure_(state_, pace, effort), lower_(lower), upper_(upper) {
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        keys_.push_back({mix(2 * v), mix(2 * v + 1)});
    }
    push(-1, -1, std::max(lower, state_.memory()), 0, state_.memory());
}

void Search::push(std::int32_t parent, OpId op, Bytes peak, std::size_t size, Bytes memory) {
    const auto size32 = static_cast<std::uint32_t>(size);
    nodes_.push_back({parent, op, 0, 0, peak, size32});
    queue_.push({peak, size32, memory, static_cast<std::int32_t>(nodes_.size()) - 1});
}

void Search::go_to(std::int32_t node) {
    std::vector<std::int32_t> way;
    for (std::int32_t k = node; k >= 0; k = nodes_[at(k)].parent) {
        way.push_back(k);
    }
    std::ranges::reverse(way);
    const auto common = static_cast<std::size_t>(std::ranges::mismatch(way, path_).in1 - way.begin());
    const std::size_t keep = common == 0 ? 0 : nodes_[at(path_[common - 1])].size;
    if (state_.order().size() > keep) {
        while (state_.order().size() > keep) {
            state_.undo();
        }
        closure_.forget();
    }
    for (std::size_t k = common; k < way.size(); ++k) {
        const Node& next = nodes_[at(way[k])];
        if (next.op >= 0) {
            closure_.run(next.op);
        }
        for (std::uint32_t r = next.first_run; r < next.end_run; ++r) {
            closure_.run(runs_[r]);
        }
    }
    path_ = std::move(way);
}

void Search::expand(std::int32_t id) {
    go_to(id);
    const std::size_t before = state_.order().size();
    const Bytes limit = std::max(nodes_[at(id)].peak, lower_);
    closure_.close(limit);
    Node& node = nodes_[at(id)];
    node.first_run = static_cast<std::uint32_t>(runs_.size());
    runs_.insert(runs_.end(), state_.order().begin() + static_cast<std::ptrdiff_t>(before), state_.order().end());
    node.end_run = static_cast<std::uint32_t>(runs_.size());
    node.size = static_cast<std::uint32_t>(state_.order().size());
    if (state_.done()) {
        best_ = state_.order();
        over_ = true;
        return;
    }
    Fingerprint sum{0, 0};
    for (const OpId op : state_.order()) {
        sum[0] ^= keys_[at(op)][0];
        sum[1] ^= keys_[at(op)][1];
    }
    if (!seen_.insert(sum).second) {
        return;
    }
    for (const OpId op : state_.ready()) {
        const Bytes peak = std::max(limit, state_.needs(op));
        if (peak < upper_) {
            push(id, op, peak, state_.order().size() + 1, state_.memory() + state_.change(op));
        }
    }
}

bool Search::advance(std::size_t sets) {
    for (std::size_t k = 0; k < sets && !over_; ++k) {
        if (queue_.empty() || queue_.top().peak >= upper_) {
            lower_ = std::max(lower_, upper_);
            over_ = true;
            break;
        }
        const Entry next = queue_.top();
        queue_.pop();
        lower_ = std::max(lower_, next.peak);
        expand(next.node);
        if (pace_.told_to_stop()) {
            break;
        }
    }
    return over_;
}

} // namespace memsched::order
