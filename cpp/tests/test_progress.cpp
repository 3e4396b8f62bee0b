// Ticks: a stop leaves a plan, an interrupt passes through, and neither is felt when it does not come.
#include "instances.h"
#include "memsched/build/makespans.h"
#include "memsched/planners/offload/dynprog.h"
#include "memsched/planners/offload/offload.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <functional>

using namespace memsched;
using namespace memsched::testing;

namespace {

struct Interrupted {}; // as a caller throws it

Progress stop_at(int tick) {
    return {[tick, seen = 0](double) mutable { return ++seen >= tick; }};
}

Progress interrupt_at(int tick) {
    return {[tick, seen = 0](double) mutable -> bool {
        if (++seen >= tick) {
            throw Interrupted();
        }
        return false;
    }};
}

struct Problem {
    Graph graph = to_graph([] {
        Dice dice(16);
        return random_chain(dice, 12);
    }());
    Bytes budget = (min_memory(graph) + peak_memory(graph)) / 2;
    Device device = device_of(budget, 1);
    std::vector<std::uint8_t> everything = [this] {
        std::vector<std::uint8_t> travels(graph.tensors().size(), 0);
        const SetBuilder builder(graph);
        for (const TensorId t : builder.movable()) {
            travels[static_cast<std::size_t>(t)] = 1;
        }
        return travels;
    }();
};

} // namespace

TEST_CASE("no callback never stops") { CHECK_FALSE(Progress{}.tick(0.5)); }

TEST_CASE("a stopped dynprog returns a set that fits and bounds that hold") {
    Dice dice(17);
    for (int round = 0; round < 40; ++round) {
        const FluidChain chain = random_fluid_chain(dice, 30);
        const DynprogSolution whole = dynprog(chain, {}, {});
        for (const int tick : {1, 5, 40}) {
            const DynprogSolution stopped = dynprog(chain, {}, stop_at(tick));
            CHECK(fluid_makespan(chain, stopped.offloaded) == stopped.makespan);
            CHECK(stopped.makespan >= whole.makespan);
            CHECK(stopped.lower_bound <= whole.makespan * (1 + 1e-12));
            CHECK((!stopped.optimal || stopped.makespan == whole.makespan));
        }
        const DynprogSolution watched = dynprog(chain, {}, {[](double) { return false; }});
        CHECK(watched.offloaded == whole.offloaded);
        CHECK(watched.states == whole.states);
    }
}

TEST_CASE("a stopped search returns the best plan so far, never worse than its starts") {
    const Problem p;
    StepList list;
    REQUIRE(SetBuilder(p.graph).build(p.everything, p.budget - p.graph.resident(), {}, list));
    const Seconds start = Simulator(p.graph, p.device, p.budget).makespan(list);
    Seconds last = start;
    for (const int tick : {1, 2, 50, 1000}) {
        const OffloadSolution s = offload_search(p.graph, p.device, p.budget, p.everything, {}, stop_at(tick));
        CHECK(s.makespan <= last);
        CHECK(Simulator(p.graph, p.device, p.budget).makespan(s.steps) == s.makespan);
        last = s.makespan;
    }
    CHECK(last < start);
    OffloadOptions enough;
    enough.lower_bound = start; // nothing left to do: returns without a tick
    CHECK(offload_search(p.graph, p.device, p.budget, p.everything, enough, {}).evaluations == 1);
}

TEST_CASE("a search without a start that fits says how much memory is needed") {
    const Problem p;
    const Bytes too_little = min_memory(p.graph) - 1;
    try {
        offload_search(p.graph, p.device, too_little, p.everything, {}, {});
        FAIL("nothing was thrown");
    } catch (const InfeasibleError& error) {
        CHECK(error.min_memory == min_memory(p.graph));
    }
    CHECK_THROWS_AS(offload_search(p.graph, p.device, p.budget, std::vector<std::uint8_t>(1), {}, {}),
                    std::invalid_argument);
}

TEST_CASE("a stopped batch leaves the rest at infinity") {
    const Problem p;
    std::vector<std::uint8_t> rows = p.everything;
    rows.insert(rows.end(), p.everything.begin(), p.everything.end());
    const std::vector<Seconds> makespans =
        offload_set_makespans(p.graph, p.device, p.budget, rows, {}, true, stop_at(2));
    CHECK(makespans[0] < Simulator::illegal);
    CHECK(makespans[1] == Simulator::illegal);
}

TEST_CASE("an interrupt passes through every planner") {
    const Problem p;
    Dice dice(18);
    const FluidChain chain = random_fluid_chain(dice, 30);
    CHECK_THROWS_AS(dynprog(chain, {}, interrupt_at(1)), Interrupted);
    CHECK_THROWS_AS(dynprog(chain, {}, interrupt_at(20)), Interrupted);
    CHECK_THROWS_AS(dynprog_hash(chain, {}, interrupt_at(20)), Interrupted);
    CHECK_THROWS_AS(offload_search(p.graph, p.device, p.budget, p.everything, {}, interrupt_at(20)), Interrupted);
    CHECK_THROWS_AS(offload_set_makespans(p.graph, p.device, p.budget, p.everything, {}, true, interrupt_at(1)),
                    Interrupted);
}
