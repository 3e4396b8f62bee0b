#include "memsched/planners/order_greedy.h"

#include "memsched/planners/order_closure.h"

#include <tuple>

namespace memsched {
namespace {

std::uint64_t mix(std::uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Smaller comes first.
std::tuple<Bytes, Bytes, OpId> merit(const OrderState& state, OpId op, Greedy rule, std::size_t rank,
                                     std::uint64_t seed) {
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

std::vector<OpId> greedy_order(const OrderProblem& problem, Bytes limit, Greedy rule, std::uint64_t seed) {
    OrderState state(problem);
    OrderClosure closure(state);
    std::vector<std::size_t> since(problem.ops(), 0);
    while (!state.done()) {
        closure.close(limit);
        OpId best = -1;
        bool best_fits = false;
        for (const OpId op : state.ready()) {
            since[at(op)] = since[at(op)] == 0 ? state.order().size() + 1 : since[at(op)];
            const bool fits = state.needs(op) <= limit;
            const auto better = [&] {
                if (!fits) { // the least harm
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

} // namespace memsched
