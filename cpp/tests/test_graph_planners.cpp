// Planners of graphs: what they write can run, what they say is what the simulator says, and segments stay a partition.
#include "instances.h"
#include "memsched/build/class_builder.h"
#include "memsched/model/fixed_choices.h"
#include "memsched/planners/classes/baselines.h"
#include "memsched/planners/classes/pooch.h"
#include "memsched/planners/classes/vdnn_sync.h"
#include "memsched/planners/modnn/modnn.h"
#include "memsched/planners/modnn/segment_list.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <set>

using namespace memsched;
using namespace memsched::testing;

namespace {

// A forward of layers that read the one before and at times an earlier one, and a backward that reads some of it again.
Graph random_step(Dice& dice, int layers) {
    GraphData data;
    const auto tensor = [&](const std::string& name, Role role) {
        data.tensors.push_back({name, dice.roll(0, 9), role});
        return static_cast<TensorId>(data.tensors.size() - 1);
    };
    const auto op = [&](const std::string& name, Phase phase, int layer) -> Op& {
        Op one;
        one.name = name;
        one.phase = phase;
        one.kind = layer % 2 == 0 ? "conv" : "relu";
        one.layer = layer;
        one.choices = {{"slow", 2.0 + dice.roll(0, 4), 0}, {"fast", 1.0, dice.roll(0, 9)}};
        data.ops.push_back(one);
        return data.ops.back();
    };
    std::vector<TensorId> maps{tensor("x", Role::input)};
    for (int k = 0; k < layers; ++k) {
        Op& one = op("F" + std::to_string(k), Phase::forward, k);
        one.reads = {maps.back()};
        if (k > 1 && dice.roll(0, 2) == 0) {
            one.reads.push_back(maps[static_cast<std::size_t>(dice.roll(0, k - 1))]);
        }
        maps.push_back(tensor("a" + std::to_string(k), Role::activation));
        one.writes = {maps.back()};
    }
    TensorId gradient = -1;
    for (int k = layers - 1; k >= 0; --k) {
        Op& one = op("B" + std::to_string(k), Phase::backward, k);
        one.reads = {maps[static_cast<std::size_t>(k)], maps[static_cast<std::size_t>(k) + 1]};
        if (gradient >= 0) {
            one.reads.push_back(gradient);
        }
        gradient = tensor("d" + std::to_string(k), Role::gradient);
        one.writes = {gradient};
    }
    data.resident = dice.roll(0, 5);
    return Graph(std::move(data));
}

Device device_of(Dice& dice, Bytes memory) {
    Device device;
    device.memory = memory;
    device.d2h = 1 + dice.roll(0, 3);
    device.h2d = 1 + dice.roll(0, 3);
    device.duplex = dice.roll(0, 1) == 1;
    return device;
}

Bytes workspaces(const Graph& graph) {
    Bytes sum = 0;
    for (const Op& op : graph.ops()) {
        sum += op.choices.back().workspace;
    }
    return sum;
}

} // namespace

TEST_CASE("segments are a partition, and neighbours that are free are joined") {
    Dice dice(1);
    for (int round = 0; round < 50; ++round) {
        SegmentList list(100);
        std::set<TensorId> held;
        for (int k = 0; k < 60; ++k) {
            const Bytes bytes = dice.roll(1, 20);
            const bool top = dice.roll(0, 1) == 1;
            if (const auto low = list.first_fit(bytes, top); low && dice.roll(0, 2) > 0) {
                list.place(static_cast<TensorId>(k), *low, bytes);
                held.insert(static_cast<TensorId>(k));
            } else if (!held.empty()) {
                list.remove(*held.begin());
                held.erase(held.begin());
            }
            Bytes end = 0;
            TensorId before = 0;
            std::size_t blocks = 0;
            for (const Segment& one : list.segments()) {
                CHECK(one.low == end);
                CHECK(one.bytes() > 0);
                CHECK(!(before == Segment::free && one.owner == Segment::free));
                before = one.owner;
                end = one.high;
                blocks += one.owner != Segment::free ? 1 : 0;
            }
            CHECK(end == 100);
            CHECK(blocks == held.size());
            list.remove(1000); // nobody's
        }
    }
}

TEST_CASE("plans from classes can run, at any memory and with any fetches") {
    Dice dice(2);
    int planned = 0;
    for (int round = 0; round < 300; ++round) {
        const Graph graph = random_step(dice, dice.roll(1, 6));
        const FixedChoices fixed = fix_choices(graph, dice.roll(-1, 9));
        const Device device = device_of(dice, min_memory(graph) + dice.roll(0, 30));
        ClassBuilder plans(fixed.graph);
        std::vector<MapClass> classes;
        for (std::size_t m = 0; m < plans.maps().size(); ++m) {
            classes.push_back(static_cast<MapClass>(dice.roll(0, 2)));
        }
        for (const auto kind : all_kinds) {
            const bool soft = dice.roll(0, 1) == 1;
            StepList list;
            if (plans.build(classes, device.memory - graph.resident(), {kind, dice.roll(1, 3), soft}, list)) {
                const Timeline timeline = simulate(graph, fixed.on_original(list), device, device.memory);
                CHECK(timeline.peak_memory <= device.memory);
                CHECK(timeline.makespan ==
                      doctest::Approx(Simulator(fixed.graph, device, device.memory).makespan(list)));
                ++planned;
            }
        }
    }
    CHECK(planned > 300);
}

TEST_CASE("the searches only get better, whoever shares the work") {
    Dice dice(3);
    for (int round = 0; round < 60; ++round) {
        const Graph graph = fix_choices(random_step(dice, dice.roll(1, 6)), 9).graph;
        const std::vector<MapClass> swapped(feature_maps(graph, Lifetimes(graph)).size(), MapClass::swap);
        const Device device = device_of(dice, least_budget(graph, swapped) + dice.roll(0, 20));
        const PoochOptions options{dice.roll(0, 1) * 4, 2, dice.roll(0, 1) == 1};
        std::vector<std::vector<MapClass>> found;
        for (const int threads : {1, 2}) {
            Workers workers(threads);
            const auto swap_opt = pooch(graph, device, false, options, workers, {});
            const auto searched = pooch(graph, device, true, options, workers, {});
            REQUIRE(swap_opt);
            REQUIRE(searched);
            CHECK(searched->best.makespan <= swap_opt->best.makespan);
            found.push_back(searched->best.classes);
        }
        CHECK(found[0] == found[1]);
        const auto alone = by_kind(graph, device, {});
        CHECK(alone.makespan > 0);
    }
}

TEST_CASE("moDNN keeps the simulator's time, and runs from its least memory on") {
    Dice dice(4);
    for (int round = 0; round < 300; ++round) {
        const Graph graph = random_step(dice, dice.roll(1, 7));
        const Bytes least = modnn_min_memory(graph);
        Device device = device_of(dice, least + dice.roll(0, 30));
        const ModnnSolution found = modnn(graph, device, dice.roll(0, 3) > 0, {});
        const Timeline timeline = simulate(graph, found.steps, device, device.memory);
        CHECK(timeline.makespan == doctest::Approx(found.makespan));
        CHECK(timeline.peak_memory <= device.memory);
        device.memory = least - 1;
        CHECK_THROWS_AS(modnn(graph, device, true, {}), InfeasibleError);
        const Bytes plenty = 10 * (peak_memory(graph) + workspaces(graph)) + 1;
        Device large = device;
        large.memory = plenty;
        CHECK(simulate(graph, modnn(graph, large, true, {}).steps, large, plenty).bytes_out == 0);
    }
}

TEST_CASE("vDNN waits in its forward for the offloads of the run before") {
    Dice dice(5);
    int waited = 0;
    for (int round = 0; round < 100; ++round) {
        const Graph graph = random_step(dice, dice.roll(2, 6));
        const Device device = device_of(dice, peak_memory(graph));
        const VdnnSolution found = vdnn_sync(graph, device);
        if (found.makespan < Simulator::illegal) {
            CHECK(simulate(graph, found.steps, device, device.memory).makespan == doctest::Approx(found.makespan));
            waited += found.steps.after.empty() ? 0 : 1;
        }
    }
    CHECK(waited > 0);
}
