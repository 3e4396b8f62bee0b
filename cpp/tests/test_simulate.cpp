// The simulator from inside: its two entry points, its reuse, and the order in which bytes come back.
#include "instances.h"
#include "memsched/model/lifetimes.h"
#include "memsched/simulate/awaited_bytes.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

using namespace memsched;
using namespace memsched::testing;

namespace {

// Tensors are named by letter; every op takes `time` and reads and writes what it says.
struct Maker {
    GraphData data;

    TensorId tensor(const std::string& name, Bytes bytes, Role role = Role::activation) {
        data.tensors.push_back({name, bytes, role});
        return static_cast<TensorId>(data.tensors.size()) - 1;
    }
    OpId op(Seconds time, std::vector<TensorId> reads, std::vector<TensorId> writes, Bytes workspace = 0) {
        Op op;
        op.name = "op" + std::to_string(data.ops.size());
        op.reads = std::move(reads);
        op.writes = std::move(writes);
        op.choices = {{"default", time, workspace}};
        data.ops.push_back(std::move(op));
        return static_cast<OpId>(data.ops.size()) - 1;
    }
    Graph graph() { return Graph(std::move(data)); }
};

struct Case {
    Graph graph;
    Device device;
    Bytes budget;
    std::vector<StepList> lists; // legal ones and others
};

Case random_case(Dice& dice) {
    const Graph graph = to_graph(random_chain(dice, dice.roll(1, 6)));
    const Bytes budget = min_memory(graph) + dice.roll(0, 20);
    Case c{graph, device_of(budget + dice.roll(0, 3), dice.roll(1, 4), dice.roll(0, 1) == 1), budget, {}};
    SetBuilder builder(c.graph);
    for (int k = 0; k < 6; ++k) {
        StepList list;
        if (builder.build(dice.flags(c.graph.tensors().size()), budget - c.graph.resident(), {}, list)) {
            c.lists.push_back(list);
            if (dice.roll(0, 2) == 0) { // most likely no longer legal
                list.steps.erase(list.steps.begin() + dice.roll(0, static_cast<int>(list.steps.size()) - 1));
                c.lists.push_back(list);
            }
        }
    }
    return c;
}

} // namespace

TEST_CASE("makespan() is the timeline's, or illegal where the timeline throws; one object does for many lists") {
    Dice dice(2);
    int legal = 0, illegal = 0;
    for (int round = 0; round < 300; ++round) {
        const Case c = random_case(dice);
        Simulator shared(c.graph, c.device, c.budget);
        for (int again = 0; again < 2; ++again) {
            for (const StepList& list : c.lists) {
                const Seconds makespan = shared.makespan(list);
                if (makespan == Simulator::illegal) {
                    ++illegal;
                    CHECK_THROWS_AS(shared.timeline(list), ScheduleError);
                    CHECK_THROWS_AS(simulate(c.graph, list, c.device, c.budget), ScheduleError);
                    continue;
                }
                ++legal;
                CHECK(shared.ends().size() == list.steps.size());
                const std::vector<Seconds> ends = shared.ends();
                const Timeline timeline = shared.timeline(list);
                CHECK(timeline == simulate(c.graph, list, c.device, c.budget));
                CHECK(timeline.makespan == makespan);
                CHECK(timeline.end == ends);
                CHECK(timeline.peak_memory <= c.budget);
                CHECK(timeline.memory_bytes.size() == timeline.memory_times.size());
                CHECK(std::is_sorted(timeline.memory_times.begin(), timeline.memory_times.end()));
            }
        }
    }
    CHECK(legal > 500);
    CHECK(illegal > 100);
}

TEST_CASE("a duplex link is never slower than a shared one, nor a fast one than a slow one") {
    Dice dice(3);
    for (int round = 0; round < 300; ++round) {
        const Case c = random_case(dice);
        Device duplex = c.device, shared = c.device, fast = c.device;
        duplex.duplex = true;
        shared.duplex = false;
        fast.h2d *= 2;
        for (const StepList& list : c.lists) {
            const Seconds before = Simulator(c.graph, c.device, c.budget).makespan(list);
            CHECK(Simulator(c.graph, duplex, c.budget).makespan(list) <=
                  Simulator(c.graph, shared, c.budget).makespan(list));
            CHECK(Simulator(c.graph, fast, c.budget).makespan(list) <= before);
            CHECK(Simulator(c.graph, c.device, c.budget + 5).makespan(list) <= before);
        }
    }
}

TEST_CASE("one link carries one transfer at a time, a duplex link one each way") {
    Maker m;
    const TensorId x = m.tensor("x", 4, Role::input), y = m.tensor("y", 4, Role::input), z = m.tensor("z", 1);
    m.op(1, {x, y}, {z});
    const Graph graph = m.graph();
    StepList list;
    list.offload(x); // 0 .. 2
    list.free(x);
    list.offload(y);  // 2 .. 4
    list.prefetch(x); // shared: 4 .. 6; duplex: 2 .. 4, from when the host copy is complete
    list.run(0);
    CHECK(Simulator(graph, device_of(100, 2), 100).makespan(list) == 7);
    CHECK(Simulator(graph, device_of(100, 2, true), 100).makespan(list) == 5);
}

TEST_CASE("bytes come back in the order of time, not of the list") {
    Maker m;
    const TensorId x = m.tensor("x", 6, Role::input), y = m.tensor("y", 2, Role::input);
    const TensorId a = m.tensor("a", 0), b = m.tensor("b", 2), c = m.tensor("c", 6);
    m.op(1, {x, y}, {a});
    m.op(1, {a}, {b});
    m.op(1, {a}, {c});
    const Graph graph = m.graph();
    StepList list;
    list.run(0);     // 0 .. 1
    list.offload(x); // 0 .. 6
    list.free(x);    // back at 6
    list.free(y);    // back at 1, listed later
    list.run(1);     // 2 bytes: those of y, at 1
    list.run(2);     // 6 bytes: those of x, at 6
    const Timeline t = simulate(graph, list, device_of(8, 1), 8);
    CHECK(t.start[4] == 1);
    CHECK(t.start[5] == 6);
    CHECK(t.makespan == 7);
    CHECK(t.peak_memory == 8);
    CHECK(t.idle == 4);
}

TEST_CASE("an allocation counts from its place in the list, even before it starts (E7)") {
    Maker m;
    const TensorId x = m.tensor("x", 5, Role::input), y = m.tensor("y", 5, Role::input);
    const TensorId a = m.tensor("a", 1), b = m.tensor("b", 3), c = m.tensor("c", 0);
    m.op(1, {y}, {a});
    m.op(1, {a}, {b});
    m.op(1, {x}, {c});
    const Graph graph = m.graph();
    StepList list;
    list.offload(x); // 0 .. 5
    list.free(x);    // back at 5
    list.offload(y); // 5 .. 10
    list.run(0);     // 0 .. 1: 11 of 14 bytes
    list.free(y);    // back at 10
    SUBCASE("listed after the run, a prefetch does not hold it up") {
        list.run(1);      // 3 bytes: 11 + 3 = 14 fit at once
        list.prefetch(x); // 10 .. 15
        list.run(2);
        const Timeline t = simulate(graph, list, device_of(14, 1), 14);
        CHECK(t.start[5] == 1);
        CHECK(t.start[6] == 10);
    }
    SUBCASE("listed before the run, it does") {
        list.prefetch(x); // the link is free at 10; the 5 bytes of x count from here on
        list.run(1);      // 1 + 5 of y + 5 reserved + 3: waits until the old bytes of x are back, at 5
        list.run(2);
        const Timeline t = simulate(graph, list, device_of(14, 1), 14);
        CHECK(t.start[5] == 10);
        CHECK(t.start[6] == 5);
    }
    SUBCASE("and where they never fit together the list cannot run") {
        list.prefetch(x); // 1 + 5 of 8 held in list order
        list.run(1);      // 3 more
        CHECK(Simulator(graph, device_of(8, 1), 8).makespan(list) == Simulator::illegal);
    }
}

TEST_CASE("a workspace is back when its run ends") {
    Maker m;
    const TensorId x = m.tensor("x", 2, Role::input), a = m.tensor("a", 1), b = m.tensor("b", 4);
    m.op(3, {x}, {a}, 5);
    m.op(1, {a}, {b});
    const Graph graph = m.graph();
    StepList list;
    list.offload(x); // 0 .. 1
    list.run(0);     // 0 .. 3, with 5 bytes of scratch
    list.free(x);
    list.prefetch(x); // 2 bytes: only when the scratch is back
    list.run(1);
    const Timeline t = simulate(graph, list, device_of(8, 2), 8);
    CHECK(t.start[3] == 3);
    CHECK(t.peak_memory == 8);
}

TEST_CASE("no step starts before the run listed before it, nor before its `after`") {
    Maker m;
    const TensorId x = m.tensor("x", 2, Role::input), a = m.tensor("a", 1), b = m.tensor("b", 1);
    m.op(3, {x}, {a});
    m.op(2, {a}, {b});
    const Graph graph = m.graph();
    StepList list;
    list.run(0);
    list.run(1);
    list.offload(x); // with op1, at 3
    list.steps.push_back({Verb::offload, false, 0, a, 0});
    list.after = {{1}}; // when op1 has ended
    const Timeline t = simulate(graph, list, device_of(100, 2), 100);
    CHECK(t.start[2] == 3);
    CHECK(t.start[3] == 5);
}

TEST_CASE("what the simulator refuses, and the step that it blames") {
    Maker m;
    const TensorId x = m.tensor("x", 4, Role::input), a = m.tensor("a", 3), b = m.tensor("b", 2);
    m.op(1, {x}, {a});
    m.op(1, {a}, {b});
    m.data.ops[1].once = true;
    const Graph graph = m.graph();
    const auto blamed = [&](const StepList& list, Device device, Bytes budget) {
        CHECK(Simulator(graph, device, budget).makespan(list) == Simulator::illegal);
        try {
            simulate(graph, list, device, budget);
        } catch (const ScheduleError& error) {
            CHECK(std::string(error.what()).size() > 10);
            return error.step;
        }
        return StepId{-2};
    };
    StepList list;
    list.run(0);
    const Device device = device_of(100, 1);
    CHECK(blamed(list, device, 100) == -1); // op1 never runs
    CHECK(blamed(list, device, 3) == -1);   // the input alone is too large
    CHECK(blamed(list, device, 6) == 0);
    CHECK(blamed(list, device_of(6, 1), 100) == 0); // the smaller of budget and memory counts
    list.run(1);
    list.run(1);
    CHECK(blamed(list, device, 100) == 2);
    list.steps.pop_back();
    list.run(0);
    CHECK(blamed(list, device, 100) == 2); // writes a, which is there
    list.steps.pop_back();
    list.prefetch(x);
    CHECK(blamed(list, device, 100) == 2);
    list.steps.pop_back();
    list.offload(x);
    CHECK(blamed(list, device_of(100, 0), 100) == 2);
    Device small_host = device;
    small_host.host_memory = 3;
    CHECK(blamed(list, small_host, 100) == 2);
    list.free(x);
    list.offload(x);
    CHECK(blamed(list, device, 100) == 4);
    list.steps.pop_back();
    list.free(x);
    CHECK(blamed(list, device, 100) == 4);
    list.steps.pop_back();
    list.run(0);
    CHECK(blamed(list, device, 100) == 4); // reads x
}

TEST_CASE("a tensor offloaded twice takes host memory once") {
    Maker m;
    const TensorId x = m.tensor("x", 4, Role::input), a = m.tensor("a", 1);
    m.op(1, {x}, {a});
    const Graph graph = m.graph();
    StepList list;
    list.offload(x);
    list.offload(x);
    list.run(0);
    Device device = device_of(100, 1);
    device.host_memory = 4;
    CHECK(Simulator(graph, device, 100).makespan(list) == 8);
}

TEST_CASE("a skipped tape takes no memory and the op's other workspace") {
    Maker m;
    const TensorId x = m.tensor("x", 1, Role::input), a = m.tensor("a", 2), tape = m.tensor("tape", 50);
    m.op(1, {x}, {a, tape}, 9);
    m.data.ops[0].tape = {tape};
    m.data.ops[0].skip_workspace = 3;
    const Graph graph = m.graph();
    StepList list;
    list.steps.push_back({Verb::run, true, 0, 0, -1});
    CHECK(simulate(graph, list, device_of(100, 1), 100).peak_memory == 6);
    list.free(a);
    list.run(0);
    const Timeline t = simulate(graph, list, device_of(100, 1), 100);
    CHECK(t.peak_memory == 62);
    CHECK(t.recompute_time == 1);
}

TEST_CASE("a long chain of which everything travels") {
    constexpr int stages = 20'000;
    ChainColumns c;
    c.forward_time.assign(stages, 2);
    c.backward_time.assign(stages, 2);
    c.activation.assign(stages + 1, 1);
    c.gradient.assign(stages + 1, 0);
    const Graph graph = to_graph(Chain(c, {}));
    SetBuilder builder(graph);
    std::vector<std::uint8_t> travels(graph.tensors().size(), 1);
    travels[stages] = 0; // a^n is needed at once
    StepList list;
    REQUIRE(builder.build(travels, 4, {}, list));
    const Timeline t = simulate(graph, list, device_of(4, 1), 4);
    CHECK(t.makespan == 4.0 * stages); // every transfer hides behind an op
    CHECK(t.peak_memory <= 4);
    CHECK(t.bytes_out == stages);
    CHECK(t.bytes_in == stages);
}

TEST_CASE("addresses are free when a plain list of all that left them says") {
    std::mt19937 random(3);
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    struct Left {
        Bytes low, high;
        Seconds done;
    };
    for (int round = 0; round < 300; ++round) {
        AddressRanges ranges;
        std::vector<Left> plain, held; // `done` of what is held: when it began
        for (int step = 0; step < 80; ++step) {
            if (!held.empty() && below(2) == 0) {
                const auto gone = held.begin() + below(static_cast<int>(held.size()));
                plain.push_back({gone->low, gone->high, gone->done + below(9)});
                ranges.leave(gone->low, plain.back().done);
                held.erase(gone);
            }
            const Bytes low = below(30), high = low + 1 + below(12);
            const auto meets = [&](const Left& one) { return one.low < high && low < one.high; };
            REQUIRE(ranges.taken(low, high).has_value() == std::ranges::any_of(held, meets));
            if (std::ranges::none_of(held, meets)) {
                Seconds start = step / 8, expected = start;
                ranges.take(low, high, start);
                for (const Left& one : plain) {
                    expected = meets(one) ? std::max(expected, one.done) : expected;
                }
                REQUIRE(start == expected);
                held.push_back({low, high, start});
            }
        }
    }
}

TEST_CASE("time to wait for memory does not grow with what else is awaited") {
    AwaitedBytes awaited;
    constexpr int count = 400'000; // it took a minute
    for (int k = 0; k < count; ++k) {
        awaited.add(1e9 + k, 1);
    }
    for (int k = 0; k < count; ++k) {
        awaited.add(k, 1);
        awaited.forget_until(k - 1);
        REQUIRE(awaited.when_left(count) == k);
    }
    awaited.clear();
    std::mt19937 random(4);
    for (int k = 0; k < count; ++k) { // in any order, with questions for few and for many
        awaited.add(static_cast<double>(random() % 1'000'000), 1);
        REQUIRE(awaited.when_left(k % 2 == 0 ? 0 : k) <= 1e6);
    }
}

TEST_CASE("awaited bytes are back when a plain list says") {
    std::mt19937 random(9);
    const auto below = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    for (int round = 0; round < 1000; ++round) {
        AwaitedBytes awaited(round % 3 == 0 ? 512 : 2 + static_cast<std::size_t>(round % 5));
        std::vector<std::pair<Seconds, Bytes>> plain;
        Seconds now = 0;
        for (int step = 0; step < 60; ++step) {
            if (const int kind = below(4); kind == 0) {
                now += below(4);
                awaited.forget_until(now);
                std::erase_if(plain, [&](const auto& one) { return one.first <= now; });
            } else if (kind == 1) {
                plain.emplace_back(now + 1 + below(12), 1 + below(9));
                awaited.add(plain.back().first, plain.back().second);
            }
            Bytes left = 0;
            for (const auto& one : plain) {
                left += one.second;
            }
            const Bytes most = below(40);
            std::sort(plain.begin(), plain.end());
            Seconds expected = 0;
            for (auto one = plain.begin(); left > most; ++one) {
                left -= one->second;
                expected = one->first;
            }
            REQUIRE(awaited.when_left(most) == expected);
        }
    }
}
