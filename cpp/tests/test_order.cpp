// The parts of the search for orders, against plain references.
#include "memsched/order/deduce.h"
#include "memsched/order/greedy.h"
#include "memsched/order/order.h"
#include "memsched/order/search.h"
#include "memsched/simulate/order_steps.h"
#include "memsched/simulate/residency.h"
#include "memsched/support/min_cut.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

using namespace memsched;
using namespace memsched::order;

namespace {

using Random = std::mt19937;

const Progress never_stops;
Pace pace(never_stops);

int draw(Random& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

// Ops that read up to three earlier tensors and write up to two.
Graph random_graph(Random& random, int ops) {
    GraphData data;
    data.tensors.push_back({"x", draw(random, 0, 9), Role::input});
    for (int v = 0; v < ops; ++v) {
        Op op;
        op.name = "o" + std::to_string(v);
        op.choices = {{"default", 1, draw(random, 0, 3) == 0 ? draw(random, 1, 9) : 0}};
        for (int k = draw(random, 0, 3); k > 0; --k) {
            const TensorId read = draw(random, 0, static_cast<int>(data.tensors.size()) - 1);
            if (std::find(op.reads.begin(), op.reads.end(), read) == op.reads.end()) {
                op.reads.push_back(read);
            }
        }
        for (int k = draw(random, 0, 2); k > 0; --k) {
            op.writes.push_back(static_cast<TensorId>(data.tensors.size()));
            data.tensors.push_back({"t" + std::to_string(data.tensors.size()), draw(random, 0, 9), Role::activation});
        }
        if (!op.writes.empty() && draw(random, 0, 2) == 0) {
            op.tape = {op.writes.back()};
        }
        data.ops.push_back(op);
    }
    return Graph(data);
}

Problem random_problem(Random& random, int ops) {
    const Graph graph = random_graph(random, ops);
    Problem problem = order_problem(graph, std::vector<std::uint8_t>(graph.tensors().size(), 0));
    problem.start = 0; // as of a part
    return problem;
}

// The least peak, by a program over sets of ops.
Bytes least_peak(const Problem& problem) {
    using Ran = std::vector<bool>;
    std::map<Ran, Bytes> level{{Ran(problem.ops()), 0}};
    for (std::size_t step = 0; step < problem.ops(); ++step) {
        std::map<Ran, Bytes> next;
        for (const auto& [ran, peak] : level) {
            State state(problem);
            for (std::size_t v = 0; v < ran.size(); ++v) { // numbers are in a topological order
                if (ran[v]) {
                    state.run(static_cast<OpId>(v));
                }
            }
            for (const OpId op : state.ready()) {
                Ran after = ran;
                after[at(op)] = true;
                const Bytes now = std::max({peak, state.memory(), state.needs(op)});
                const auto [found, fresh] = next.try_emplace(after, now);
                found->second = std::min(found->second, now);
            }
        }
        level = std::move(next);
    }
    return level.begin()->second;
}

std::vector<OpId> listed(const Problem& problem) {
    std::vector<OpId> order(problem.ops());
    std::iota(order.begin(), order.end(), 0);
    return order;
}

} // namespace

TEST_CASE("a minimum cut") {
    MinCut cut(4);
    cut.add_edge(0, 2, 3);
    cut.add_edge(0, 3, 2);
    cut.add_edge(2, 3, 5);
    cut.add_edge(2, 1, 1);
    cut.add_edge(3, 1, 9);
    CHECK(cut.solve(0, 1, MinCut::unlimited, pace) == 5);
}

TEST_CASE("orders are as good as the program over sets says, and so are those of reversed time") {
    Random random(1);
    for (int k = 0; k < 300; ++k) {
        const Problem problem = random_problem(random, draw(random, 1, 9));
        const Solution found = least_memory_order(problem, {});
        const Bytes best = least_peak(problem);
        REQUIRE(peak_of(problem, found.order) == best);
        REQUIRE(std::max(best, found.peak) == std::max(best, found.lower_bound));
        REQUIRE(least_peak(reversed(problem)) == best);
    }
}

TEST_CASE("the search over sets alone finds the least peak, and proves that nothing is below it") {
    Random random(11);
    for (int k = 0; k < 300; ++k) {
        const Problem problem = random_problem(random, draw(random, 2, 9));
        const Bytes best = least_peak(problem);
        Search found(problem, 0, best + 1, pace), none(problem, 0, best, pace);
        REQUIRE(found.advance(10000));
        REQUIRE(found.lower() == best);
        REQUIRE(peak_of(problem, found.best()) == best);
        REQUIRE(none.advance(10000));
        REQUIRE(none.best().empty());
    }
}

TEST_CASE("what must be held bounds every order, and cuts bound it better") {
    Random random(2);
    for (int k = 0; k < 300; ++k) {
        const Problem problem = random_problem(random, draw(random, 2, 9));
        const Reach reach(problem, pace);
        const std::vector<Bytes> held = held_at_least(problem, reach, pace);
        for (const Greedy rule : {Greedy::least_change, Greedy::least_need, Greedy::newest}) {
            const std::vector<OpId> order = greedy_order(problem, least_peak(problem), rule, pace);
            State state(problem);
            for (const OpId op : order) {
                const Bytes cut = HeldCut(problem, reach, op, pace).least(MinCut::unlimited);
                REQUIRE(held[at(op)] <= cut);
                REQUIRE(cut <= state.needs(op));
                state.run(op);
            }
        }
    }
}

TEST_CASE("stopped anywhere, an order is legal and no worse than the listed one, and its bound holds") {
    Random random(8);
    for (int k = 0; k < 100; ++k) {
        const Problem problem = random_problem(random, draw(random, 3, 9));
        const Bytes best = least_peak(problem);
        const Progress stops{[left = draw(random, 0, 30)](double) mutable { return left-- <= 0; }};
        const Solution found = least_memory_order(problem, stops);
        State state(problem);
        for (const OpId op : found.order) {
            REQUIRE(state.is_ready(op));
            state.run(op);
        }
        REQUIRE(state.done());
        REQUIRE(std::max(peak_of(problem, found.order), found.peak) == found.peak);
        REQUIRE(found.peak <= std::max(peak_of(problem, listed(problem)), found.lower_bound));
        REQUIRE(found.lower_bound <= best);
        REQUIRE(least_memory_bound(problem, stops) <= best);
    }
}

TEST_CASE("with too little room for its bounds an order is no worse than the listed one, and they hold") {
    Random random(11);
    int reached = 0, proven = 0;
    for (int k = 0; k < 200; ++k) {
        const Problem problem = random_problem(random, draw(random, 3, 9));
        const Bytes best = least_peak(problem);
        const std::size_t all = Reach::bytes(problem.ops());
        const Bytes most = least_memory_bound(problem, never_stops);
        for (const std::size_t room : {std::size_t{0}, all / 2, all}) {
            const Solution found = least_memory_order(problem, never_stops, room);
            REQUIRE(found.peak <= std::max(peak_of(problem, listed(problem)), found.lower_bound));
            REQUIRE(std::max(peak_of(problem, found.order), found.lower_bound) == found.peak);
            REQUIRE(found.lower_bound <= best);
            proven += found.lower_bound == found.peak;
            const Bytes bound = least_memory_bound(problem, never_stops, room);
            REQUIRE(bound <= most);
            reached += bound < most;
        }
    }
    CHECK(reached > 20); // the cap was, and cost something
    CHECK(proven > 400); // by the searches
}

TEST_CASE("a problem is split into the parts between what ran and what did not") {
    Random random(9);
    for (int k = 0; k < 200; ++k) {
        const Problem problem = random_problem(random, draw(random, 2, 9));
        std::vector<OpId> begins;
        std::vector<std::uint8_t> ran(problem.ops(), 0);
        for (std::size_t v = 0; v < problem.ops(); ++v) {
            if (v == 0 || draw(random, 0, 1) == 0) {
                begins.push_back(static_cast<OpId>(v));
            }
        }
        const std::vector<Problem> parts = split(problem, begins);
        for (std::size_t p = 0; p < parts.size(); ++p) {
            std::vector<OpId> ops(parts[p].ops());
            std::iota(ops.begin(), ops.end(), begins[p]);
            const Problem same = part_of(problem, ops, ran);
            REQUIRE(parts[p].base == same.base);
            REQUIRE(parts[p].bytes == same.bytes);
            REQUIRE(parts[p].scratch == same.scratch);
            REQUIRE(parts[p].from_start == same.from_start);
            REQUIRE(parts[p].to_end == same.to_end);
            REQUIRE(peak_of(parts[p], listed(same)) == peak_of(same, listed(same)));
            for (const OpId op : ops) {
                ran[at(op)] = 1;
            }
        }
    }
}

TEST_CASE("runs can be undone") {
    Random random(3);
    for (int k = 0; k < 100; ++k) {
        const Problem problem = random_problem(random, 9);
        State state(problem);
        std::vector<Bytes> memory{state.memory()};
        for (const OpId op : listed(problem)) {
            REQUIRE(state.is_ready(op));
            const Bytes after = state.memory() + state.change(op);
            state.run(op);
            REQUIRE(state.memory() == after);
            memory.push_back(after);
        }
        for (std::size_t left = problem.ops(); left > 0; --left) {
            state.undo();
            REQUIRE(state.memory() == memory[left - 1]);
            REQUIRE(state.is_ready(static_cast<OpId>(left) - 1));
        }
    }
}

TEST_CASE("flows on top of a flow can be taken back") {
    MinCut cut(4);
    cut.add_edge(0, 2, 3);
    cut.add_edge(2, 1, 1);
    cut.add_edge(2, 3, 5);
    cut.add_edge(3, 1, 9);
    CHECK(cut.solve(0, 1, MinCut::unlimited, pace) == 3);
    cut.keep();
    CHECK(cut.reached_from(0) == std::vector<std::uint8_t>{1, 0, 0, 0});
    CHECK(cut.reaches(1) == std::vector<std::uint8_t>{0, 1, 1, 1});
    for (int k = 0; k < 2; ++k) {
        CHECK(cut.solve(2, 1, MinCut::unlimited, pace) == 3);
        CHECK(cut.solve(3, 1, 4, pace) == 4);
        cut.take_back();
    }
}

TEST_CASE("what is held if another op ran, or did not, is what orders with that precedence hold") {
    Random random(6);
    for (int k = 0; k < 200; ++k) {
        const Problem problem = random_problem(random, draw(random, 3, 9));
        const Reach reach(problem, pace);
        const OpId op = draw(random, 0, static_cast<int>(problem.ops()) - 1);
        HeldCut cut(problem, reach, op, pace);
        const Bytes least = cut.least(MinCut::unlimited), fits = least + draw(random, 0, 4);
        REQUIRE(least == HeldCut(problem, reach, op, pace).least(MinCut::unlimited));
        const auto given = [&](OpId first, OpId then) {
            const Deduced with = with_precedences(problem, {{first, then}});
            const auto now = std::find(with.ops.begin(), with.ops.end(), op) - with.ops.begin();
            return HeldCut(with.problem, Reach(with.problem, pace), static_cast<OpId>(now), pace)
                .least(MinCut::unlimited);
        };
        for (const OpId other : listed(problem)) {
            if (other != op && !reach.is_before(op, other) && !reach.is_before(other, op)) {
                const Bytes ran = cut.least_if(other, true, fits, MinCut::unlimited), true_ran = given(other, op);
                const Bytes not_yet = cut.least_if(other, false, fits, MinCut::unlimited), true_not = given(op, other);
                REQUIRE(std::max(ran, fits) == std::max(true_ran, fits));
                REQUIRE(std::max(not_yet, fits) == std::max(true_not, fits));
            }
        }
    }
}

TEST_CASE("what is deduced, from many cuts or few, holds in every better order") {
    Random random(4);
    int told = 0, less = 0;
    for (int k = 0; k < 300; ++k) {
        const Problem problem = random_problem(random, draw(random, 3, 9));
        const Bytes best = least_peak(problem);
        const Deduced same = deduce(problem, draw(random, 0, static_cast<int>(best)), best + 1, 3, most_bytes, pace);
        REQUIRE(same.lower <= best);
        REQUIRE(best < same.below);
        REQUIRE(least_peak(same.problem) == best);
        told += deduce(problem, 0, best, 3, most_bytes, pace).lower == best;
        const Deduced few = deduce(problem, 0, best + 1, 3, 1, pace);
        REQUIRE(few.lower <= best);
        REQUIRE((best >= few.below || least_peak(few.problem) == best)); // what is told is of orders below that
        less += few.lower < deduce(problem, 0, best + 1, 3, most_bytes, pace).lower;
    }
    CHECK(told > 100);
    CHECK(less > 0); // the cap was reached
}

TEST_CASE("cases settle whether an order is within a limit") {
    Random random(7);
    int settled = 0;
    for (int k = 0; k < 300; ++k) {
        const Problem problem = random_problem(random, draw(random, 3, 9));
        const Bytes best = least_peak(problem);
        const Settled within = settle(problem, best, 2, 30, most_bytes, pace),
                      below = settle(problem, best - 1, 2, 30, most_bytes, pace);
        REQUIRE_FALSE(within.impossible);
        REQUIRE(below.order.empty());
        REQUIRE((within.order.empty() || peak_of(problem, within.order) == best));
        settled += !within.order.empty() && below.impossible;
    }
    CHECK(settled > 250);
}

TEST_CASE("steps of an order hold what the order holds") {
    Random random(5);
    for (int k = 0; k < 200; ++k) {
        const Graph graph = random_graph(random, 9);
        const std::vector<std::uint8_t> keep(graph.tensors().size(), 0);
        const Problem problem = order_problem(graph, keep);
        const Solution found = least_memory_order(problem, {});
        const StepList list = order_steps(graph, found.order, keep, 0);
        std::vector<Bytes> held(list.steps.size() + 1, graph.resident());
        for (const Stay& stay : residency(graph, list)) {
            for (StepId step = stay.start; step < stay.end; ++step) {
                held[at(step)] += stay.bytes;
            }
        }
        REQUIRE(*std::max_element(held.begin(), held.end()) == found.peak);
        REQUIRE(peak_of(problem, found.order) == found.peak);
    }
}
