#include "memsched/planners/order.h"

#include "memsched/planners/order_bound.h"
#include "memsched/planners/order_cases.h"
#include "memsched/planners/order_deduce.h"
#include "memsched/planners/order_greedy.h"
#include "memsched/planners/order_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace memsched {
namespace {

constexpr std::size_t most_nodes = 20'000'000; // of a search: some gigabytes

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

    // The bounds, and orders by simple rules.
    void begin(const Progress& progress) {
        raise(bound());
        raise_by_cuts(progress);
        greedy_orders({}, progress);
    }

    // Where the two do not meet; at the end of this the best order is known, or a search has `most` nodes.
    void finish(std::size_t most, const Progress& progress) {
        tighten(12, 64, progress);
        improve_windows({}, progress);
        search(quick_nodes, {}, progress);
        greedy_orders(thorough, progress);
        improve_windows(thorough, progress);
        tighten(64, 256, progress);
        search(most, {}, progress);
    }

    // Another part needs so much.
    void set_enough(Bytes enough) { enough_ = std::max(enough_, enough); }

  private:
    OrderSolution& found() { return part_.found; }
    bool enough() { return found().peak <= at_least(); }
    Bytes at_least() { return std::max(found().lower_bound, enough_); }
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
    void greedy_orders(Effort effort, const Progress& progress) {
        for (int round = 0; round < 8; ++round) {
            for (const Greedy rule : {Greedy::least_change, Greedy::least_need, Greedy::listed, Greedy::newest}) {
                for (const bool backward : {false, true}) {
                    if (enough() || progress.tick(0)) {
                        return;
                    }
                    const Bytes lower = at_least();
                    const Bytes limit = lower + (round == 0 ? 0 : (found().peak - lower) >> round);
                    backward ? offer_turned(greedy_order(turned_, limit, rule, effort))
                             : offer(greedy_order(part_.problem, limit, rule, effort));
                    raise_by_cuts(progress);
                }
            }
            if (round == 0) {
                offer(small_first_order(part_.problem));
                offer_turned(small_first_order(turned_));
            }
        }
    }

    // An op can only prove more than is known if it needs more in the best order.
    void raise_by_cuts(const Progress& progress) {
        OrderState state(part_.problem);
        for (const OpId op : found().order) {
            if (!cut_[at(op)] && !enough() && state.needs(op) > at_least() && !progress.tick(0)) {
                cut_[at(op)] = 1;
                raise(held_exactly(part_.problem, reach_, op, state.needs(op)));
            }
            state.run(op);
        }
    }

    // Solves again what lies around the worst op of the best order, in windows that grow until one brings something.
    void improve_windows(Effort effort, const Progress& progress) {
        const std::size_t all = part_.problem.ops();
        for (std::size_t width = 16; width < all && !enough() && !progress.tick(0);) {
            width = improve_window(width, effort, progress) ? 16 : 2 * width;
        }
    }

    bool improve_window(std::size_t width, Effort effort, const Progress& progress) {
        const auto& order = found().order;
        OrderState state(part_.problem);
        std::size_t worst = 0;
        while (state.needs(order[worst]) < found().peak && worst + 1 < order.size()) {
            state.run(order[worst++]);
        }
        const std::size_t begin = worst > width / 2 ? std::min(worst - width / 2, order.size() - width) : 0;
        std::vector<std::uint8_t> ran(order.size(), 0);
        for (std::size_t k = 0; k < begin; ++k) {
            ran[at(order[k])] = 1;
        }
        std::vector<OpId> ops(order.begin() + static_cast<std::ptrdiff_t>(begin),
                              order.begin() + static_cast<std::ptrdiff_t>(begin + width));
        std::sort(ops.begin(), ops.end());
        Part window{ops, part_of(part_.problem, ops, ran), {}};
        PartSolver solver(window, at_least());
        solver.raise(solver.bound());
        solver.greedy_orders(effort, progress);
        solver.search(window_nodes, effort, progress);
        std::vector<OpId> better = order;
        for (std::size_t k = 0; k < width; ++k) {
            better[begin + k] = ops[at(window.found.order[k])];
        }
        const auto worst_ops = [&](const std::vector<OpId>& one) { return count_at_peak(one, found().peak); };
        const Bytes before = found().peak;
        if (peak_of(part_.problem, better) == before && worst_ops(better) < worst_ops(order)) {
            found().order = std::move(better); // no lower yet, but at fewer places
            return true;
        }
        offer(std::move(better));
        raise_by_cuts(progress);
        return found().peak < before;
    }

    std::size_t count_at_peak(const std::vector<OpId>& order, Bytes peak) const {
        OrderState state(part_.problem);
        std::size_t count = 0;
        for (const OpId op : order) {
            count += state.needs(op) >= peak;
            state.run(op);
        }
        return count;
    }

    // Raises the bound by what all better orders have in common, then looks for an order that meets it, case by case.
    void tighten(std::size_t critical, std::size_t cases, const Progress& progress) {
        for (int round = 0; round < tighten_rounds && !enough() && !progress.tick(0); ++round) {
            raise(deduce(part_.problem, at_least(), found().peak, critical, progress).lower);
            if (enough()) {
                return;
            }
            Settled settled = settle(part_.problem, at_least(), critical, cases, progress);
            if (settled.impossible) {
                raise(at_least() + 1);
            } else if (settled.order.empty()) {
                return;
            } else {
                offer(std::move(settled.order));
            }
        }
    }

    void search(std::size_t most, Effort effort, const Progress& progress) {
        if (enough()) {
            return;
        }
        const Bytes lower = at_least();
        OrderSearch forward(part_.problem, lower, found().peak, effort), backward(turned_, lower, found().peak, effort);
        const auto nodes = [&] { return forward.nodes() + backward.nodes(); };
        bool over = false;
        for (std::size_t sets = 256; !over && !enough() && nodes() < most && !progress.tick(0); sets *= 2) {
            for (OrderSearch* one : {&forward, &backward}) {
                if (over || enough()) {
                    break;
                }
                over = one->advance(sets, progress);
                raise(one->lower());
                if (over && !one->best().empty()) {
                    one == &forward ? offer(one->best()) : offer_turned(one->best());
                }
            }
        }
        found().visited += static_cast<std::int64_t>(forward.visited() + backward.visited());
    }

    static constexpr std::size_t window_nodes = 12000, quick_nodes = 100000;
    static constexpr int tighten_rounds = 16; // each that ends without an order raises the bound

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
    std::vector<Part> parts = parts_of(problem, reach);
    std::vector<PartSolver> solvers;
    for (Part& part : parts) {
        solvers.emplace_back(part, whole.lower_bound).begin(progress);
        whole.lower_bound = std::max(whole.lower_bound, part.found.lower_bound);
    }
    for (std::size_t k = 0; k < parts.size(); ++k) {
        solvers[k].set_enough(whole.lower_bound);
        solvers[k].finish(most_nodes, progress);
        whole.lower_bound = std::max(whole.lower_bound, parts[k].found.lower_bound);
    }
    for (const Part& part : parts) {
        for (const OpId op : part.found.order) {
            whole.order.push_back(part.ops[at(op)]);
        }
        whole.peak = std::max(whole.peak, part.found.peak);
        whole.visited += part.found.visited;
    }
    return whole;
}

std::vector<OpId> random_order(const OrderProblem& problem, Bytes limit, std::uint64_t seed) {
    return greedy_order(problem, limit, Greedy::random, {}, seed);
}

} // namespace memsched
