#include "memsched/order/order.h"

#include "memsched/order/deduce.h"
#include "memsched/order/greedy.h"
#include "memsched/order/search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace memsched::order {
namespace {

constexpr std::size_t most_nodes = 20'000'000;   // per search: some gigabytes
constexpr std::int64_t first_steps = 20'000'000; // for the first bounds, even if time is short

Bytes greatest(const std::vector<Bytes>& bytes) { return *std::ranges::max_element(bytes); }

Bytes start_bytes(const Problem& problem) { return std::max(problem.start, State(problem).memory()); }

// A part of the problem between two pillars.
struct Part {
    std::vector<OpId> ops; // of the whole
    Problem problem;
    Solution found;
};

// Splits at pillars: each pillar is a part of its own, and so is everything between two of them.
std::vector<Part> parts_of(const Problem& problem) {
    const std::size_t n = problem.ops();
    std::vector<OpId> begins;                                   // of parts
    std::vector<OpId> last_before(n + 1, static_cast<OpId>(n)); // over ops from here on: the least op that is the last
    for (std::size_t v = n; v-- > 0;) {
        const auto before = problem.before[v];
        last_before[v] = std::min(last_before[v + 1], before.empty() ? -1 : before.back());
    }
    OpId first_after = 0; // over ops up to here: the greatest op that is the first to wait
    bool fresh = true;
    for (std::size_t v = 0; v < n; ++v) {
        const auto op = static_cast<OpId>(v);
        const bool pillar = first_after <= op && last_before[v + 1] >= op;
        if (fresh || pillar) {
            begins.push_back(op);
        }
        fresh = pillar;
        const auto after = problem.after[v];
        first_after = std::max(first_after, after.empty() ? static_cast<OpId>(n) : after.front());
    }
    std::vector<Problem> problems = split(problem, begins);
    std::vector<Part> parts;
    for (std::size_t k = 0; k < begins.size(); ++k) {
        std::vector<OpId> ops(problems[k].ops());
        std::iota(ops.begin(), ops.end(), begins[k]);
        parts.push_back({std::move(ops), std::move(problems[k]), {}});
    }
    return parts;
}

// Solves one part, alternating forwards and backwards in time, until its best order is known or irrelevant.
class PartSolver {
  public:
    PartSolver(Part& part, Bytes enough, std::size_t room)
        : part_(part), enough_(enough), room_(room), cut_(part.problem.ops(), 0) {
        const Problem& problem = part.problem;
        part.found.peak = std::numeric_limits<Bytes>::max();
        offer(all_ids(problem.ops()));
        if (problem.ops() == 1) { // the common case in long graphs
            raise(found().peak);
            return;
        }
        raise(start_bytes(problem));
        raise(greatest(touched_at_least(problem)));
    }

    // The bound by what must be held, if `room` suffices for it; the better bounds build on it.
    void measure(std::size_t room, Pace& pace) {
        if (found().lower_bound == found().peak || Reach::bytes(part_.problem.ops()) > room) {
            return;
        }
        reach_.emplace(part_.problem, pace);
        raise(greatest(held_at_least(part_.problem, *reach_, pace)));
    }

    // Bounds by cuts, and orders by simple rules.
    void begin(Pace& pace) {
        raise_by_cuts(pace);
        greedy_orders({}, pace);
    }

    // If the two do not meet: continues until the best order is known or a search has too many nodes.
    void finish(Pace& pace) {
        tighten(12, 64, pace);
        improve_windows({}, pace);
        search(quick_nodes, {}, pace);
        greedy_orders(thorough, pace);
        improve_windows(thorough, pace);
        tighten(64, 256, pace);
        search(most_nodes, {}, pace);
    }

    // Another part needs this much.
    void set_enough(Bytes enough) { enough_ = std::max(enough_, enough); }

  private:
    Solution& found() { return part_.found; }

    // Made on demand: most parts of long graphs never need it.
    const Problem& turned() { return turned_ ? *turned_ : turned_.emplace(reversed(part_.problem)); }

    bool enough() { return found().peak <= at_least(); }
    Bytes at_least() { return std::max(found().lower_bound, enough_); }
    void raise(Bytes lower) { found().lower_bound = std::min(std::max(found().lower_bound, lower), found().peak); }

    void offer(std::vector<OpId> order) {
        const Bytes peak = peak_of(part_.problem, order);
        if (peak < found().peak) {
            found().peak = peak;
            found().order = std::move(order);
        }
    }

    void offer_turned(std::vector<OpId> order) { offer(reversed(std::move(order))); }

    // At several limits: a tight one constrains the order, a loose one settles more ops at once.
    void greedy_orders(Effort effort, Pace& pace) {
        for (int round = 0; round < 8; ++round) {
            for (const Greedy rule : simple_rules) {
                for (const bool backward : {false, true}) {
                    if (enough() || pace.told_to_stop()) {
                        return;
                    }
                    const Bytes lower = at_least();
                    const Bytes limit = lower + (round == 0 ? 0 : (found().peak - lower) >> round);
                    backward ? offer_turned(greedy_order(turned(), limit, rule, pace, effort))
                             : offer(greedy_order(part_.problem, limit, rule, pace, effort));
                    raise_by_cuts(pace);
                }
            }
            if (round == 0) {
                offer(small_first_order(part_.problem, pace));
                offer_turned(small_first_order(turned(), pace));
            }
        }
    }

    // An op can improve the bound only if it needs more than the bound in the best order.
    void raise_by_cuts(Pace& pace) {
        if (!reach_) {
            return;
        }
        State state(part_.problem);
        for (const OpId op : found().order) {
            if (!cut_[at(op)] && !enough() && state.needs(op) > at_least() && !pace.told_to_stop()) {
                cut_[at(op)] = 1;
                raise(HeldCut(part_.problem, *reach_, op, pace).least(state.needs(op)));
            }
            state.run(op);
        }
    }

    // Solves windows around the worst op of the best order again, growing until one improves it.
    void improve_windows(Effort effort, Pace& pace) {
        const std::size_t all = part_.problem.ops();
        for (std::size_t width = 16; width < all && !enough() && !pace.told_to_stop();) {
            width = improve_window(width, effort, pace) ? 16 : 2 * width;
        }
    }

    bool improve_window(std::size_t width, Effort effort, Pace& pace) {
        const auto& order = found().order;
        State state(part_.problem);
        std::size_t worst = 0;
        while (state.needs(order[worst]) < found().peak && worst + 1 < order.size()) {
            state.run(order[worst++]);
        }
        const std::size_t begin = worst > width / 2 ? std::min(worst - width / 2, order.size() - width) : 0;
        const auto ran = flags_of(order.size(), std::span(order).first(begin));
        std::vector<OpId> ops(order.begin() + static_cast<std::ptrdiff_t>(begin),
                              order.begin() + static_cast<std::ptrdiff_t>(begin + width));
        std::ranges::sort(ops);
        Part window{ops, part_of(part_.problem, ops, ran), {}};
        PartSolver solver(window, at_least(), room_);
        solver.measure(room_, pace);
        solver.greedy_orders(effort, pace);
        solver.search(window_nodes, effort, pace);
        std::vector<OpId> better = order;
        for (std::size_t k = 0; k < width; ++k) {
            better[begin + k] = ops[at(window.found.order[k])];
        }
        const Bytes before = found().peak;
        if (peak_of(part_.problem, better) == before && count_at_peak(better) < count_at_peak(order)) {
            found().order = std::move(better); // the same peak, but at fewer places
            return true;
        }
        offer(std::move(better));
        raise_by_cuts(pace);
        return found().peak < before;
    }

    // Ops that need as much as the peak of the best order.
    std::size_t count_at_peak(const std::vector<OpId>& order) const {
        State state(part_.problem);
        std::size_t count = 0;
        for (const OpId op : order) {
            count += state.needs(op) >= part_.found.peak;
            state.run(op);
        }
        return count;
    }

    // Raises the bound by deduction, then looks for an order that meets it, case by case.
    void tighten(std::size_t critical, std::size_t cases, Pace& pace) {
        for (int round = 0; round < tighten_rounds && reach_ && !enough() && !pace.told_to_stop(); ++round) {
            raise(deduce(part_.problem, at_least(), found().peak, critical, room_, pace).lower);
            if (enough()) {
                return;
            }
            Settled settled = settle(part_.problem, at_least(), critical, cases, room_, pace);
            if (settled.impossible) {
                raise(at_least() + 1);
            } else if (settled.order.empty()) {
                return;
            } else {
                offer(std::move(settled.order));
            }
        }
    }

    void search(std::size_t most, Effort effort, Pace& pace) {
        if (enough()) {
            return;
        }
        const Bytes lower = at_least();
        Search forward(part_.problem, lower, found().peak, pace, effort);
        Search backward(turned(), lower, found().peak, pace, effort);
        const auto count = [&] {
            found().visited += static_cast<std::int64_t>(forward.visited() + backward.visited());
        };
        try {
            by_turns(forward, backward, most, pace);
        } catch (const Stopped&) {
            raise(std::max(forward.lower(), backward.lower()));
            count();
            throw;
        }
        count();
    }

    void by_turns(Search& forward, Search& backward, std::size_t most, Pace& pace) {
        const auto nodes = [&] { return forward.nodes() + backward.nodes(); };
        bool over = false;
        for (std::size_t sets = 256; !over && !enough() && nodes() < most && !pace.told_to_stop(); sets *= 2) {
            for (Search* one : {&forward, &backward}) {
                if (over || enough()) {
                    break;
                }
                over = one->advance(sets);
                raise(one->lower());
                if (over && !one->best().empty()) {
                    one == &forward ? offer(one->best()) : offer_turned(one->best());
                }
            }
        }
    }

    static constexpr std::size_t window_nodes = 12000, quick_nodes = 100000;
    static constexpr int tighten_rounds = 16; // each round without an order raises the bound

    Part& part_;
    Bytes enough_; // lower peaks than this do not matter: another part needs as much
    std::size_t room_;
    std::optional<Reach> reach_;    // empty: not enough time or memory
    std::vector<std::uint8_t> cut_; // by op: whether its minimum cut is known
    std::optional<Problem> turned_;
};

// All parts, each with its solver.
class Whole {
  public:
    Whole(const Problem& problem, std::size_t room)
        : room_(room), parts_(parts_of(problem)), lower_(start_bytes(problem)) {
        solvers_.reserve(parts_.size());
        for (Part& part : parts_) {
            solvers_.emplace_back(part, 0, room);
            learn(part);
        }
        peak_ = lower_;
    }

    Bytes bound(const Progress& progress) {
        Pace pace(progress, first_steps);
        std::size_t room = room_;
        try {
            for (std::size_t k = 0; k < parts_.size(); ++k) {
                solvers_[k].measure(room, pace);
                learn(parts_[k]);
                room -= std::min(room, Reach::bytes(parts_[k].problem.ops()));
            }
        } catch (const Stopped&) { // keep what is known
        }
        return lower_;
    }

    Solution solve(const Progress& progress) {
        bound(progress);
        Pace pace(progress);
        try {
            for (const auto work : {&PartSolver::begin, &PartSolver::finish}) {
                for (std::size_t k = 0; k < parts_.size(); ++k) {
                    solvers_[k].set_enough(lower_);
                    (solvers_[k].*work)(pace);
                    learn(parts_[k]);
                }
            }
        } catch (const Stopped&) { // keep the best so far
        }
        return gather();
    }

  private:
    void learn(const Part& part) { lower_ = std::max(lower_, part.found.lower_bound); }

    Solution gather() {
        Solution whole;
        whole.peak = peak_;
        for (const Part& part : parts_) {
            learn(part);
            for (const OpId op : part.found.order) {
                whole.order.push_back(part.ops[at(op)]);
            }
            whole.peak = std::max(whole.peak, part.found.peak);
            whole.visited += part.found.visited;
        }
        whole.lower_bound = lower_;
        return whole;
    }

    std::size_t room_;
    std::vector<Part> parts_;
    std::vector<PartSolver> solvers_;
    Bytes lower_ = 0;
    Bytes peak_ = 0; // a lower bound for every order
};

} // namespace

Solution least_memory_order(const Problem& problem, const Progress& progress, std::size_t room) {
    return Whole(problem, room).solve(progress);
}

Bytes least_memory_bound(const Problem& problem, const Progress& progress, std::size_t room) {
    return Whole(problem, room).bound(progress);
}

std::vector<OpId> random_order(const Problem& problem, Bytes limit, std::uint64_t seed, const Progress& progress) {
    Pace pace(progress);
    try {
        return greedy_order(problem, limit, Greedy::random, pace, {}, seed);
    } catch (const Stopped&) {
        return {};
    }
}

} // namespace memsched::order
