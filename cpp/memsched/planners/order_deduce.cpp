#include "memsched/planners/order_deduce.h"

#include <algorithm>
#include <numeric>

namespace memsched {
namespace {

using Edges = std::vector<std::pair<OpId, OpId>>;

bool is_before(const Reach& reach, OpId first, OpId then) {
    return (reach.ancestors(then)[at(first) / 64] >> (at(first) % 64) & 1) != 0;
}

// The ops that need most in any order, most first.
std::vector<OpId> critical_ops(const OrderProblem& problem, const Reach& reach, Bytes limit, std::size_t most,
                               const Progress& progress) {
    std::vector<std::pair<Bytes, OpId>> needs;
    for (std::size_t v = 0; v < problem.ops() && !progress.tick(0); ++v) {
        needs.emplace_back(-held_exactly(problem, reach, static_cast<OpId>(v), limit), static_cast<OpId>(v));
    }
    std::sort(needs.begin(), needs.end());
    std::vector<OpId> ops;
    for (std::size_t k = 0; k < std::min(most, needs.size()); ++k) {
        ops.push_back(needs[k].second);
    }
    return ops;
}

// What one op tells of all others; false: no order is below the limit.
bool deduce_at(const OrderProblem& problem, const Reach& reach, OpId op, Bytes limit, Edges& edges,
               const Progress& progress) {
    for (std::size_t v = 0; v < problem.ops() && !progress.tick(0); ++v) {
        const auto other = static_cast<OpId>(v);
        if (other == op || is_before(reach, op, other) || is_before(reach, other, op)) {
            continue;
        }
        const bool before = held_exactly(problem, reach, op, limit, {other, true}) < limit;
        const bool after = held_exactly(problem, reach, op, limit, {other, false}) < limit;
        if (!before && !after) {
            return false;
        }
        if (!before) {
            edges.emplace_back(op, other);
        } else if (!after) {
            edges.emplace_back(other, op);
        }
    }
    return true;
}

// Ops so that each comes after those it waits for and after the first of its edges; fewer than all: there is a cycle.
std::vector<OpId> sorted_with(const OrderProblem& problem, const Edges& edges) {
    std::vector<std::int32_t> waits(problem.ops(), 0);
    std::vector<std::vector<OpId>> after(problem.ops());
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        waits[v] = static_cast<std::int32_t>(problem.before[v].size());
        after[v].assign(problem.after[v].begin(), problem.after[v].end());
    }
    for (const auto& [first, then] : edges) {
        after[at(first)].push_back(then);
        ++waits[at(then)];
    }
    std::vector<OpId> ops;
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        if (waits[v] == 0) {
            ops.push_back(static_cast<OpId>(v));
        }
    }
    for (std::size_t k = 0; k < ops.size(); ++k) {
        for (const OpId next : after[at(ops[k])]) {
            if (--waits[at(next)] == 0) {
                ops.push_back(next);
            }
        }
    }
    return ops;
}

// False: they make a cycle.
bool add_edges(Deduced& to, Edges edges) {
    const std::vector<OpId> ops = sorted_with(to.problem, edges);
    if (ops.size() < to.problem.ops()) {
        return false;
    }
    std::vector<OpId> number(ops.size()), origin(ops.size());
    for (std::size_t k = 0; k < ops.size(); ++k) {
        number[at(ops[k])] = static_cast<OpId>(k);
        origin[k] = to.ops[at(ops[k])];
    }
    for (auto& [first, then] : edges) {
        first = number[at(first)];
        then = number[at(then)];
    }
    to.problem = renumbered(to.problem, ops, edges);
    to.ops = std::move(origin);
    return true;
}

} // namespace

Deduced deduce(const OrderProblem& problem, Bytes limit, std::size_t critical, const Progress& progress) {
    Deduced now{problem, std::vector<OpId>(problem.ops()), false};
    std::iota(now.ops.begin(), now.ops.end(), 0);
    while (!progress.tick(0)) {
        const Reach reach(now.problem);
        Edges edges;
        for (const OpId op : critical_ops(now.problem, reach, limit, critical, progress)) {
            if (!deduce_at(now.problem, reach, op, limit, edges, progress)) {
                now.impossible = true;
                return now;
            }
        }
        if (edges.empty()) {
            break;
        }
        now.impossible = !add_edges(now, std::move(edges));
        if (now.impossible) {
            return now;
        }
    }
    return now;
}

} // namespace memsched
