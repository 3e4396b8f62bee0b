#include "memsched/planners/order_bound.h"

#include "memsched/planners/min_cut.h"

#include <algorithm>
#include <bit>

namespace memsched {
namespace {

void add(std::uint64_t* to, const std::uint64_t* from, std::size_t words) {
    for (std::size_t w = 0; w < words; ++w) {
        to[w] |= from[w];
    }
}

void set(std::uint64_t* bits, OpId op) { bits[at(op) / 64] |= std::uint64_t{1} << (at(op) % 64); }

std::size_t count(const std::uint64_t* bits, std::size_t words) {
    std::size_t ones = 0;
    for (std::size_t w = 0; w < words; ++w) {
        ones += static_cast<std::size_t>(std::popcount(bits[w]));
    }
    return ones;
}

bool has(const std::uint64_t* bits, OpId op) { return (bits[at(op) / 64] >> (at(op) % 64) & 1) != 0; }

} // namespace

Reach::Reach(const OrderProblem& problem)
    : words_((problem.ops() + 63) / 64), up_(problem.ops() * words_, 0), down_(problem.ops() * words_, 0) {
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        for (const OpId op : problem.before[v]) {
            add(up_.data() + v * words_, ancestors(op), words_);
            set(up_.data() + v * words_, op);
        }
    }
    for (std::size_t v = problem.ops(); v-- > 0;) {
        for (const OpId op : problem.after[v]) {
            add(down_.data() + v * words_, descendants(op), words_);
            set(down_.data() + v * words_, op);
        }
    }
}

std::size_t Reach::ancestor_count(OpId op) const { return count(ancestors(op), words_); }
std::size_t Reach::descendant_count(OpId op) const { return count(descendants(op), words_); }

std::vector<Bytes> held_at_least(const OrderProblem& problem, const Reach& reach) {
    const std::size_t words = reach.words();
    std::vector<Bytes> held(problem.ops());
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        held[v] = problem.base + problem.scratch[v];
    }
    std::vector<std::uint64_t> begun(words), open(words);
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        begun.assign(words, problem.from_start[e] ? ~std::uint64_t{0} : 0);
        open.assign(words, problem.to_end[e] ? ~std::uint64_t{0} : 0);
        for (const OpId op : problem.members[e]) {
            add(begun.data(), reach.descendants(op), words);
            add(open.data(), reach.ancestors(op), words);
        }
        for (std::size_t w = 0; w < words; ++w) {
            open[w] &= begun[w];
        }
        for (const OpId op : problem.members[e]) {
            set(open.data(), op);
        }
        for (std::size_t w = 0; w < words; ++w) {
            for (std::uint64_t bits = open[w]; bits != 0; bits &= bits - 1) {
                const std::size_t v = w * 64 + static_cast<std::size_t>(std::countr_zero(bits));
                if (v < held.size()) {
                    held[v] += problem.bytes[e];
                }
            }
        }
    }
    return held;
}

Bytes held_exactly(const OrderProblem& problem, const Reach& reach, OpId op, Bytes enough, Given given) {
    // Nodes: what has run (source), what has not (sink), the ops that may be in either, two for each net.
    constexpr std::int32_t source = 0, sink = 1;
    std::vector<std::int32_t> node(problem.ops(), -1);
    std::int32_t nodes = 2;
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        const auto other = static_cast<OpId>(v);
        const bool same = other == given.op;
        const bool before = has(reach.ancestors(op), other) ||
                            (given.op >= 0 && given.ran && (same || has(reach.ancestors(given.op), other)));
        const bool after = other == op || has(reach.descendants(op), other) ||
                           (given.op >= 0 && !given.ran && (same || has(reach.descendants(given.op), other)));
        node[v] = before ? source : after ? sink : nodes++;
    }
    const auto first_net = nodes;
    MinCut cut(at(first_net) + 2 * problem.bytes.size());
    Bytes held = problem.base + problem.scratch[at(op)];
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        const auto& members = problem.members[e];
        bool run = problem.from_start[e] != 0, left = problem.to_end[e] != 0, own = false;
        for (const OpId member : members) {
            run = run || node[at(member)] == source;
            left = left || node[at(member)] == sink;
            own = own || member == op;
        }
        if (own || (run && left)) { // however the others are divided
            held += problem.bytes[e];
            continue;
        }
        const std::int32_t enter = first_net + 2 * static_cast<std::int32_t>(e), leave = enter + 1;
        cut.add_edge(enter, leave, problem.bytes[e]);
        if (run) {
            cut.add_edge(source, enter, MinCut::unlimited);
        }
        if (left) {
            cut.add_edge(leave, sink, MinCut::unlimited);
        }
        for (const OpId member : members) {
            if (node[at(member)] > sink) {
                cut.add_edge(node[at(member)], enter, MinCut::unlimited);
                cut.add_edge(leave, node[at(member)], MinCut::unlimited);
            }
        }
    }
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        for (const OpId before : problem.before[v]) {
            if (node[v] > sink && node[at(before)] > sink) {
                cut.add_edge(node[v], node[at(before)], MinCut::unlimited);
            }
        }
    }
    return held + cut.solve(source, sink, std::max<Bytes>(enough - held, 0));
}

} // namespace memsched
