// Whatever changes, a list of runs fits and can run.
#include "instances.h"
#include "memsched/build/gap_builder.h"
#include "memsched/planners/selective/run_list.h"
#include "memsched/simulate/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace memsched;
using namespace memsched::testing;

namespace {

bool same(const std::vector<PlanEvent>& some, const std::vector<PlanEvent>& others) {
    return std::ranges::equal(some, others, [](const PlanEvent& one, const PlanEvent& other) {
        return one.what == other.what && one.id == other.id && one.skip == other.skip;
    });
}

// Each op reads some of the tensors before it; some have a tape, or run once.
Graph random_graph(Dice& dice, int count) {
    GraphData data;
    const auto tensor = [&](Role role) {
        data.tensors.push_back({"t" + std::to_string(data.tensors.size()), dice.roll(0, 9), role});
        return static_cast<TensorId>(data.tensors.size() - 1);
    };
    tensor(Role::input);
    tensor(Role::weight);
    for (int k = 0; k < count; ++k) {
        Op op;
        op.name = "o" + std::to_string(k);
        op.phase = 2 * k < count ? Phase::forward : Phase::backward;
        for (TensorId t = 0; at(t) < data.tensors.size(); ++t) {
            if (dice.roll(0, 2) == 0) {
                op.reads.push_back(t);
            }
        }
        op.writes = {tensor(Role::activation)};
        if (dice.roll(0, 2) == 0) {
            op.writes.push_back(tensor(Role::activation));
            op.tape = {op.writes.back()};
        }
        op.choices = {{"one", static_cast<Seconds>(dice.roll(1, 5)), dice.roll(0, 2)}};
        op.once = dice.roll(0, 3) == 0;
        data.ops.push_back(op);
    }
    return Graph(std::move(data));
}

} // namespace

TEST_CASE("a list of runs fits and can run after any changes") {
    Dice dice(7);
    int shorter = 0, exchanged = 0, traded = 0, refused = 0;
    for (int round = 0; round < 300; ++round) {
        const Graph graph = random_graph(dice, 8);
        Device device;
        device.d2h = device.h2d = dice.roll(0, 1) * 2.0;
        const bool linked = device.d2h > 0;
        device.memory = 0;
        for (const Tensor& tensor : graph.tensors()) {
            device.memory += tensor.bytes;
        }
        device.memory = device.memory * dice.roll(5, 9) / 10;
        const Progress progress;
        GapBuilder builder(graph, device, progress);
        const std::vector<MapClass> keep(builder.gaps().size(), MapClass::keep);
        StepList list;
        if (!builder.build(keep, {}, {}, {}, device.memory, list)) {
            continue;
        }
        Simulator simulator(graph, device, device.memory);
        const Seconds before = simulator.makespan(list);
        RunList runs(graph, list, device.memory, linked);
        std::mt19937_64 random(static_cast<std::uint64_t>(round));
        FetchPlaces places(graph, 0);
        for (int k = 0; k < 20; ++k) {
            Outline outline;
            outline.events = runs.events().value();
            places.attribute(outline);
            REQUIRE(places.list(outline, device.memory, {}, {}, list));
            const Seconds now = simulator.makespan(list);
            REQUIRE(now < Simulator::illegal);
            shorter += now < before * (1 - 1e-9);
            for (int change = 0; change < 20; ++change) {
                runs.change(k % 2 ? 1.0 : 1e-3, random);
            }
            if (!linked) { // a trade is undone, or costs no time here
                const std::vector<PlanEvent> events = runs.events().value();
                const Seconds time = runs.time();
                const bool changed = runs.trade(0, random);
                ++(changed ? traded : refused);
                CHECK(runs.time() <= time + 1e-9);
                CHECK((changed || same(events, runs.events().value())));
                runs.trade(3.0, random);
            }
            const RunList kept = runs;
            if (runs.exchange(random)) {
                ++exchanged;
            } else {
                runs = kept;
            }
        }
    }
    CHECK(shorter > 0);
    CHECK(exchanged > 0);
    CHECK(traded > 0);
    CHECK(refused > 0);
}
