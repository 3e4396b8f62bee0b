#include "memsched/planners/order.h"

#include "memsched/planners/order_bound.h"
#include "memsched/planners/order_greedy.h"
#include "memsched/planners/order_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace memsched {
namespace {

Bytes start_bytes(const OrderProblem& problem) { return OrderState(problem).memory(); }

// A part of the problem between two ops that every order runs at the same place.
struct Part {
    std::vector<OpId> ops; // of the whole
    OrderProblem problem;
    OrderSolution found;
};

// Ops that all others come before or after, each a part of its own, and what lies between them.
std::vector<Part> parts_of(const OrderProblem& problem, const Reach& reach) {
    std::vector<std::uint8_t> ran(problem.ops(), 0);
    std::vector<Part> parts;
    std::vector<OpId> between;
    const auto close_part = [&](std::vector<OpId> ops) {
        if (!ops.empty()) {
            parts.push_back({ops, part_of(problem, ops, ran), {}});
            for (const OpId op : ops) {
                ran[at(op)] = 1;
            }
        }
    };
    std::vector<std::pair<std::size_t, OpId>> pillars;
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        const auto op = static_cast<OpId>(v);
        const std::size_t up = reach.ancestor_count(op);
        if (up + reach.descendant_count(op) + 1 == problem.ops()) {
            pillars.push_back({up, op});
        }
    }
    std::sort(pillars.begin(), pillars.end());
    std::vector<std::uint8_t> taken(problem.ops(), 0);
    for (const auto& [up, pillar] : pillars) {
        for (std::size_t v = 0; v < problem.ops(); ++v) {
            const bool above = (reach.ancestors(pillar)[v / 64] >> (v % 64) & 1) != 0;
            if (above && !taken[v]) {
                between.push_back(static_cast<OpId>(v));
                taken[v] = 1;
            }
        }
        taken[at(pillar)] = 1;
        close_part(std::exchange(between, {}));
        close_part({pillar});
    }
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        if (!taken[v]) {
            between.push_back(static_cast<OpId>(v));
        }
    }
    close_part(std::move(between));
    return parts;
}

// Searches one part, forwards and backwards in time by turns, until its best order is known or no longer matters.
class PartSolver {
  public:
    PartSolver(Part& part, Bytes enough)
        : part_(part), enough_(enough), reach_(part.problem), cut_(part.problem.ops(), 0),
          turned_(reversed(part.problem)) {
        const OrderProblem& problem = part.problem;
        std::vector<OpId> listed(problem.ops());
        std::iota(listed.begin(), listed.end(), 0);
        part.found.peak = std::numeric_limits<Bytes>::max();
        offer(std::move(listed));
    }

    void solve(const Progress& progress) {
        raise(bound());
        raise_by_cuts(progress);
        greedy_orders(progress);
        search(progress);
    }

  private:
    OrderSolution& found() { return part_.found; }
    bool enough() { return found().peak <= std::max(found().lower_bound, enough_); }
    void raise(Bytes lower) { found().lower_bound = std::min(std::max(found().lower_bound, lower), found().peak); }

    Bytes bound() const {
        const auto held = held_at_least(part_.problem, reach_);
        return std::max(start_bytes(part_.problem), *std::max_element(held.begin(), held.end()));
    }

    void offer(std::vector<OpId> order) {
        const Bytes peak = peak_of(part_.problem, order);
        if (peak < found().peak) {
            found().peak = peak;
            found().order = std::move(order);
        }
    }

    void offer_turned(std::vector<OpId> order) {
        std::reverse(order.begin(), order.end());
        for (OpId& op : order) {
            op = static_cast<OpId>(part_.problem.ops()) - 1 - op;
        }
        offer(std::move(order));
    }

    // At several limits: a tight one makes the order wait, a loose one lets more be settled at once.
    void greedy_orders(const Progress& progress) {
        for (int round = 0; round < 8; ++round) {
            for (const Greedy rule : {Greedy::least_change, Greedy::least_need, Greedy::listed, Greedy::newest}) {
                for (const bool backward : {false, true}) {
                    if (enough() || progress.tick(0)) {
                        return;
                    }
                    const Bytes lower = std::max(found().lower_bound, enough_);
                    const Bytes limit = lower + (round == 0 ? 0 : (found().peak - lower) >> round);
                    backward ? offer_turned(greedy_order(turned_, limit, rule))
                             : offer(greedy_order(part_.problem, limit, rule));
                    raise_by_cuts(progress);
                }
            }
        }
    }

    // An op can only prove more than is known if it needs more in the best order.
    void raise_by_cuts(const Progress& progress) {
        OrderState state(part_.problem);
        for (const OpId op : found().order) {
            if (!cut_[at(op)] && !enough() && state.needs(op) > std::max(found().lower_bound, enough_) &&
                !progress.tick(0)) {
                cut_[at(op)] = 1;
                raise(held_exactly(part_.problem, reach_, op, state.needs(op)));
            }
            state.run(op);
        }
    }

    void search(const Progress& progress) {
        if (enough()) {
            return;
        }
        const Bytes lower = std::max(found().lower_bound, enough_);
        OrderSearch forward(part_.problem, lower, found().peak), backward(turned_, lower, found().peak);
        for (std::size_t sets = 256; !enough(); sets *= 2) {
            for (OrderSearch* one : {&forward, &backward}) {
                one->advance(sets, progress);
                raise(one->lower());
                if (one->over() && !one->best().empty()) {
                    one == &forward ? offer(one->best()) : offer_turned(one->best());
                }
                if (one->over() || enough()) {
                    found().visited += static_cast<std::int64_t>(forward.visited() + backward.visited());
                    return;
                }
            }
            if (progress.tick(0)) {
                break;
            }
        }
        found().visited += static_cast<std::int64_t>(forward.visited() + backward.visited());
    }

    Part& part_;
    Bytes enough_; // orders are as good as the best when their peak is no higher: another part needs as much
    Reach reach_;
    std::vector<std::uint8_t> cut_; // by op: whether its minimum cut is known
    OrderProblem turned_;
};

} // namespace

OrderSolution least_memory_order(const OrderProblem& problem, const Progress& progress) {
    const Reach reach(problem);
    const auto held = held_at_least(problem, reach);
    OrderSolution whole;
    whole.lower_bound = start_bytes(problem);
    for (const Bytes bytes : held) {
        whole.lower_bound = std::max(whole.lower_bound, bytes);
    }
    whole.peak = whole.lower_bound;
    for (Part& part : parts_of(problem, reach)) {
        PartSolver(part, whole.lower_bound).solve(progress);
        for (const OpId op : part.found.order) {
            whole.order.push_back(part.ops[at(op)]);
        }
        whole.peak = std::max(whole.peak, part.found.peak);
        whole.lower_bound = std::max(whole.lower_bound, part.found.lower_bound);
        whole.visited += part.found.visited;
    }
    return whole;
}

std::vector<OpId> random_order(const OrderProblem& problem, Bytes limit, std::uint64_t seed) {
    return greedy_order(problem, limit, Greedy::random, seed);
}

} // namespace memsched
