#include "memsched/order/greedy.h"

#include "memsched/order/bound.h"
#include "memsched/support/mix.h"

#include <algorithm>
#include <tuple>

namespace memsched::order {
namespace {

// Smaller comes first.
std::tuple<Bytes, Bytes, OpId> merit(const State& state, OpId op, Greedy rule, std::size_t rank, std::uint64_t seed) {
    switch (rule) {
    case Greedy::least_change:
        return {state.change(op), state.needs(op), op};
    case Greedy::least_need:
        return {state.needs(op), state.change(op), op};
    case Greedy::listed:
        return {0, 0, op};
    case Greedy::newest:
        return {-static_cast<Bytes>(rank), 0, op};
    case Greedy::random:
        return {static_cast<Bytes>(mix(seed + mix(static_cast<std::uint64_t>(op))) >> 1), 0, op};
    }
    return {};
}

} // namespace

std::vector<OpId> greedy_order(const Problem& problem, Bytes limit, Greedy rule, Pace& pace, Effort effort,
                               std::uint64_t seed) {
    State state(problem);
    Closure closure(state, pace, effort);
    std::vector<std::size_t> since(problem.ops(), 0);
    while (!state.done()) {
        closure.close(limit);
        OpId best = -1;
        bool best_fits = false;
        pace.spend(static_cast<std::int64_t>(16 * state.ready().size()));
        for (const OpId op : state.ready()) {
            since[at(op)] = since[at(op)] == 0 ? state.order().size() + 1 : since[at(op)];
            const bool fits = state.needs(op) <= limit;
            const auto better = [&] {
                if (!fits) { // least excess
                    return merit(state, op, Greedy::least_need, 0, 0) < merit(state, best, Greedy::least_need, 0, 0);
                }
                return merit(state, op, rule, since[at(op)], seed) < merit(state, best, rule, since[at(best)], seed);
            };
            if (best < 0 || (fits && !best_fits) || (fits == best_fits && better())) {
                best = op;
                best_fits = fits;
            }
        }
        if (best >= 0) {
            closure.run(best);
        }
    }
    return state.order();
}

std::vector<OpId> small_first_order(const Problem& problem, Pace& pace) {
    const std::vector<Bytes> touched = touched_at_least(problem);
    std::vector<OpId> ranked = all_ids(problem.ops());
    std::ranges::stable_sort(ranked, {}, [&](OpId op) { return touched[at(op)]; });
    std::vector<OpId> order, stack;
    std::vector<std::uint8_t> ran(problem.ops(), 0);
    for (const OpId op : ranked) {
        stack.push_back(op);
        while (!stack.empty()) {
            const OpId top = stack.back();
            OpId next = -1;
            pace.spend(2 * static_cast<std::int64_t>(problem.before[at(top)].size()) + 8);
            for (const OpId before : problem.before[at(top)]) {
                if (!ran[at(before)] && (next < 0 || touched[at(before)] < touched[at(next)])) { // the first of equals
                    next = before;
                }
            }
            if (next >= 0 && !ran[at(top)]) {
                stack.push_back(next);
                continue;
            }
            stack.pop_back();
            if (!ran[at(top)]) {
                ran[at(top)] = 1;
                order.push_back(top);
            }
        }
    }
    return order;
}

} // namespace memsched::order
