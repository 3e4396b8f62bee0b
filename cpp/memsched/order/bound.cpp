#include "memsched/order/bound.h"

#include <algorithm>
#include <bit>

namespace memsched::order {
namespace {

void add(std::uint64_t* to, const std::uint64_t* from, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) {
        to[w] |= from[w];
    }
}

void set(std::uint64_t* bits, OpId op) { bits[at(op) / 64] |= std::uint64_t{1} << (at(op) % 64); }

// The cost of a row of bits, in steps.
std::int64_t steps(std::size_t words) { return static_cast<std::int64_t>(words / 4) + 1; }

} // namespace

Reach::Reach(const Problem& problem, Pace& pace) : ops_(problem.ops()), words_((problem.ops() + 63) / 64) {
    up_.reserve(problem.ops() * words_);
    down_.reserve(problem.ops() * words_);
    // Row by row, since first touching so much memory takes time. `known`: the row of an op that has one already.
    const auto add_row = [&](std::vector<std::uint64_t>& rows, IdLists::Ids next, const auto& known) {
        rows.resize(rows.size() + words_, 0);
        pace.spend(2 * steps(words_));
        std::uint64_t* row = rows.data() + rows.size() - words_;
        for (const OpId op : next) {
            pace.spend(steps(words_));
            add(row, known(op), words_);
            set(row, op);
        }
    };
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        add_row(up_, problem.before[v], [this](OpId op) { return ancestors(op); });
    }
    for (std::size_t v = problem.ops(); v-- > 0;) {
        add_row(down_, problem.after[v], [this](OpId op) { return descendants(op); });
    }
}

std::vector<Bytes> touched_at_least(const Problem& problem) {
    std::vector<Bytes> held(problem.scratch);
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        held[v] += problem.base;
        for (const NetId e : problem.nets[v]) {
            held[v] += problem.bytes[at(e)];
        }
    }
    return held;
}

std::vector<Bytes> held_at_least(const Problem& problem, const Reach& reach, Pace& pace) {
    const std::size_t words = reach.words();
    std::vector<Bytes> held(problem.scratch);
    for (Bytes& bytes : held) {
        bytes += problem.base;
    }
    std::vector<std::uint64_t> begun(words), open(words);
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        begun.assign(words, problem.from_start[e] ? ~std::uint64_t{0} : 0);
        open.assign(words, problem.to_end[e] ? ~std::uint64_t{0} : 0);
        for (const OpId op : problem.members[e]) {
            add(begun.data(), reach.descendants(op), words);
            add(open.data(), reach.ancestors(op), words);
            pace.spend(2 * steps(words));
        }
        for (std::size_t w = 0; w < words; ++w) {
            open[w] &= begun[w];
        }
        for (const OpId op : problem.members[e]) {
            set(open.data(), op);
        }
        std::int64_t added = 4 * steps(words);
        for (std::size_t w = 0; w < words; ++w) {
            added += std::popcount(open[w]);
            for (std::uint64_t bits = open[w]; bits != 0; bits &= bits - 1) {
                const std::size_t v = w * 64 + static_cast<std::size_t>(std::countr_zero(bits));
                if (v < held.size()) {
                    held[v] += problem.bytes[e];
                }
            }
        }
        pace.spend(added);
    }
    return held;
}

HeldCut::HeldCut(const Problem& problem, const Reach& reach, OpId op, Pace& pace)
    : pace_(&pace), node_(problem.ops(), sink), held_(problem.base + problem.scratch[at(op)]) {
    pace.spend(static_cast<std::int64_t>(8 * (problem.ops() + problem.bytes.size())));
    // In addition to source and sink: the ops that may be on either side, and two nodes for each of their nets.
    std::int32_t nodes = 2;
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        const auto other = static_cast<OpId>(v);
        node_[v] = reach.is_before(other, op) ? source : other == op || reach.is_before(op, other) ? sink : nodes++;
    }
    std::vector<std::pair<NetId, std::pair<bool, bool>>> open; // nets, and whether they touch source and sink
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        bool run = problem.from_start[e] != 0, left = problem.to_end[e] != 0, own = false, free = false;
        for (const OpId member : problem.members[e]) {
            run = run || node_[at(member)] == source;
            left = left || node_[at(member)] == sink;
            free = free || node_[at(member)] > sink;
            own = own || member == op;
        }
        if (own || (run && left)) {
            held_ += problem.bytes[e];
        } else if (free) {
            open.push_back({static_cast<NetId>(e), {run, left}});
        }
    }
    cut_ = MinCut(at(nodes) + 2 * open.size());
    for (const auto& [e, ends] : open) {
        const std::int32_t enter = nodes++, leave = nodes++;
        cut_.add_edge(enter, leave, problem.bytes[at(e)]);
        if (ends.first) {
            cut_.add_edge(source, enter, MinCut::unlimited);
        }
        if (ends.second) {
            cut_.add_edge(leave, sink, MinCut::unlimited);
        }
        for (const OpId member : problem.members[at(e)]) {
            if (node_[at(member)] > sink) {
                cut_.add_edge(node_[at(member)], enter, MinCut::unlimited);
                cut_.add_edge(leave, node_[at(member)], MinCut::unlimited);
            }
        }
    }
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        if (node_[v] <= sink) {
            continue;
        }
        for (const OpId before : problem.before[v]) {
            if (node_[at(before)] > sink) {
                cut_.add_edge(node_[v], node_[at(before)], MinCut::unlimited);
            }
        }
    }
}

Bytes HeldCut::least(Bytes enough) {
    held_ += cut_.solve(source, sink, std::max<Bytes>(enough - held_, 0), *pace_);
    cut_.keep();
    return held_;
}

// If the op's node is forced to join source or sink, only the flow between it and the other one can grow.
Bytes HeldCut::least_if(OpId other, bool ran, Bytes fits, Bytes enough) {
    const std::int32_t node = node_[at(other)];
    if (may_run_.empty()) {
        note_cuts();
    }
    if ((ran ? may_run_ : may_not_)[at(node)]) {
        return held_;
    }
    const Bytes more = std::max<Bytes>(enough - held_, 0);
    const Bytes held = held_ + cut_.solve(ran ? node : source, ran ? sink : node, more, *pace_);
    if (held <= fits) {
        note_cuts();
    }
    cut_.take_back();
    return held;
}

// The minimum cuts with the most and the fewest ops that have run.
void HeldCut::note_cuts() {
    pace_->spend(static_cast<std::int64_t>(16 * node_.size()));
    const std::vector<std::uint8_t> late = cut_.reaches(sink), early = cut_.reached_from(source);
    may_run_.resize(late.size(), 0);
    may_not_.resize(late.size(), 0);
    for (std::size_t n = 0; n < late.size(); ++n) {
        may_run_[n] |= !late[n];
        may_not_[n] |= !early[n];
    }
}

} // namespace memsched::order
