// rotor and POFO: what they plan runs in the memory that they were given, whoever computes it.
#include "instances.h"
#include "memsched/model/lifetimes.h"
#include "memsched/planners/remat/least_memory.h"
#include "memsched/planners/remat/merged_chain.h"
#include "memsched/planners/remat/pofo.h"
#include "memsched/simulate/unroll.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

using namespace memsched;
using namespace memsched::testing;

namespace {

std::vector<Run> runs_of(const RematChain& chain, const std::vector<RematOp>& sequence) {
    std::vector<Run> runs;
    for (const Run& run : graph_runs(chain, sequence)) {
        runs.push_back({run.op, run.skip});
    }
    return runs;
}

Bytes peak(const Graph& graph, const RematChain& chain, const std::vector<RematOp>& sequence) {
    const Bytes found = peak_memory(unroll(graph, runs_of(chain, sequence)).graph);
    CHECK(peak_of_runs(graph, runs_of(chain, sequence)) == found);
    return found;
}

} // namespace

TEST_CASE("rotor's sequences fit, and take the time of the table") {
    Dice dice(1);
    Workers workers(2);
    for (int round = 0; round < 200; ++round) {
        const Chain source = random_chain(dice, dice.roll(1, 7));
        const RematChain chain(source);
        const Graph graph = to_graph(source);
        const LeastMemory least(chain, {});
        const Bytes capacity = least.rotor() + dice.roll(0, 20);
        CHECK(peak(graph, chain, least.rotor_sequence(capacity)) <= capacity + graph.resident());
        const SegmentTable table(chain, std::max<Bytes>(1, capacity), dice.roll(1, 40), workers, Progress{});
        const auto plan = rotor(table, capacity);
        CHECK((plan || table.width() > 1));
        if (!plan) {
            continue;
        }
        CHECK(peak(graph, chain, plan->sequence) <= capacity + graph.resident());
        Seconds time = 0;
        for (const Run& run : runs_of(chain, plan->sequence)) {
            time += graph.op(run.op).choices[0].time;
        }
        CHECK(time == doctest::Approx(plan->time));
    }
}

TEST_CASE("POFO does not depend on the number of threads, nor exceeds its bounds") {
    Dice dice(2);
    Workers one(1), three(3);
    for (int round = 0; round < 60; ++round) {
        const Chain source = random_chain(dice, dice.roll(1, 7));
        const RematChain chain(source);
        const Bytes capacity = std::max<Bytes>(1, LeastMemory(chain, {}).pofo() + dice.roll(0, 20));
        const int slots = dice.roll(1, 30);
        const SegmentTable table(chain, capacity, slots, one, Progress{});
        for (const bool exact : {false, true}) {
            const PofoOptions options{capacity, 1.5, 2.0, {}, exact, 7};
            const auto alone = pofo(table, options, one, Progress{});
            const auto shared = pofo(table, options, three, Progress{});
            REQUIRE(alone.has_value() == shared.has_value());
            if (alone) {
                CHECK(alone->time == shared->time);
                CHECK(alone->sequence == shared->sequence);
                CHECK(alone->time >= chain.ideal(1, chain.layers) * (1 - 1e-9));
            }
        }
        CHECK(LeastMemory(chain, {}).pofo_plan(capacity).sequence.size() >=
              static_cast<std::size_t>(2 * source.n() + 1));
    }
}

TEST_CASE("an unrolled plan without repeats is the graph itself") {
    Dice dice(3);
    const Graph graph = to_graph(random_chain(dice, 5));
    std::vector<Run> runs;
    for (std::size_t op = 0; op < graph.ops().size(); ++op) {
        runs.push_back({static_cast<OpId>(op), false});
    }
    const Unrolled unrolled = unroll(graph, runs);
    REQUIRE(unrolled.graph.ops().size() == graph.ops().size());
    CHECK(peak_memory(unrolled.graph) == peak_memory(graph));
    for (std::size_t t = 0; t < unrolled.tensors.size(); ++t) {
        CHECK(unrolled.graph.tensors()[t].name == graph.tensor(unrolled.tensors[t]).name);
    }
    CHECK_THROWS_AS(unroll(graph, std::vector<Run>{{1, false}}), ScheduleError);
    CHECK_THROWS_AS(peak_of_runs(graph, std::vector<Run>{{1, false}}), ScheduleError);
}

TEST_CASE("workers do every index once") {
    Workers workers(4);
    for (const int count : {0, 1, 3, 1000}) {
        std::vector<int> seen(static_cast<std::size_t>(count), 0);
        workers.each(count, [&](int index, int) { ++seen[static_cast<std::size_t>(index)]; });
        CHECK(std::count(seen.begin(), seen.end(), 1) == count);
    }
}

TEST_CASE("least memories without a table suffice, and are seldom more") {
    Dice dice(4);
    int same = 0;
    for (int round = 0; round < 500; ++round) {
        const Chain source = random_chain(dice, dice.roll(1, 9));
        const RematChain chain(source);
        const Graph graph = to_graph(source);
        const LeastMemory exact(chain, {}), quick(chain, {}, 0);
        CHECK(quick.rotor() >= exact.rotor());
        CHECK(quick.pofo() >= exact.pofo());
        same += quick.rotor() == exact.rotor() && quick.pofo() == exact.pofo() ? 1 : 0;
        for (const Bytes more : {0, 3, 20}) {
            CHECK(peak(graph, chain, quick.rotor_sequence(quick.rotor() + more)) <=
                  quick.rotor() + more + graph.resident());
            CHECK(quick.pofo_plan(quick.pofo() + more).blocks.back().last == chain.layers);
        }
    }
    CHECK(same > 250);
}

TEST_CASE("a plan of groups fits and takes the time that it says, layer by layer") {
    Dice dice(5);
    Workers workers(1);
    int planned = 0;
    for (int round = 0; round < 500; ++round) {
        const Chain source = random_chain(dice, dice.roll(2, 12));
        const RematChain chain(source);
        const Graph graph = to_graph(source);
        const MergedChain groups(chain, dice.roll(2, chain.layers));
        CHECK(groups.ends.front() == 0);
        CHECK(groups.ends.back() == chain.layers);
        CHECK(std::is_sorted(groups.ends.begin(), groups.ends.end(), std::less_equal<>()));
        const Bytes capacity = std::max<Bytes>(1, LeastMemory(groups.chain, {}).rotor() + dice.roll(0, 20));
        const SegmentTable table(groups.chain, capacity, static_cast<int>(capacity), workers, Progress{});
        const auto plan = rotor(table, capacity);
        if (!plan) {
            continue;
        }
        ++planned;
        const auto sequence = groups.layers(plan->sequence);
        CHECK(peak(graph, chain, sequence) <= capacity + graph.resident());
        Seconds time = 0;
        for (const Run& run : runs_of(chain, sequence)) {
            time += graph.op(run.op).choices[0].time;
        }
        CHECK(time == doctest::Approx(plan->time));
    }
    CHECK(planned > 400);
}
