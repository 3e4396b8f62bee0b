// Whatever changes, a list of runs fits and can run.
#include "instances.h"
#include "memsched/build/gap_builder.h"
#include "memsched/planners/selective/run_list.h"
#include "memsched/planners/selective/whole_step.h"
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

// So many tenths of the bytes of all tensors.
Device tight(const Graph& graph, double rate, int tenths) {
    Device device;
    device.d2h = device.h2d = rate;
    device.memory = 0;
    for (const Tensor& tensor : graph.tensors()) {
        device.memory += tensor.bytes;
    }
    device.memory = device.memory * tenths / 10;
    return device;
}

void change_some(RunList& runs, Seconds temperature, std::mt19937_64& random) {
    for (int change = 0; change < 20; ++change) {
        runs.change(temperature, random);
    }
}

// Whether the list changed.
bool exchange_or_keep(RunList& runs, std::mt19937_64& random) {
    const RunList kept = runs;
    const bool fits = runs.exchange(random);
    runs = fits ? runs : kept;
    return fits;
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
        const double rate = dice.roll(0, 1) * 2.0;
        const Device device = tight(graph, rate, dice.roll(5, 9));
        const bool linked = rate > 0;
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
            change_some(runs, k % 2 ? 1.0 : 1e-3, random);
            if (!linked) { // a trade is undone, or costs no time here
                const std::vector<PlanEvent> events = runs.events().value();
                const Seconds time = runs.time();
                const bool changed = runs.trade(0, random);
                ++(changed ? traded : refused);
                CHECK(runs.time() <= time + 1e-9);
                CHECK((changed || same(events, runs.events().value())));
                runs.trade(3.0, random);
            }
            exchanged += exchange_or_keep(runs, random);
        }
    }
    CHECK(shorter > 0);
    CHECK(exchanged > 0);
    CHECK(traded > 0);
    CHECK(refused > 0);
}

namespace {

// A step of some layers, whose parameters and states are updated as soon as possible or at the end. Some parameters are
// read twice, some updated twice; the input is there at the border.
Graph random_step(Dice& dice) {
    GraphData data;
    const auto tensor = [&](Role role) {
        data.tensors.push_back({"t" + std::to_string(data.tensors.size()), dice.roll(0, 9), role});
        return static_cast<TensorId>(data.tensors.size() - 1);
    };
    const auto op = [&](Phase phase, std::vector<TensorId> reads, std::vector<TensorId> writes) {
        Op one;
        one.name = "o" + std::to_string(data.ops.size());
        one.phase = phase;
        one.reads = std::move(reads);
        one.writes = std::move(writes);
        one.choices = {{"one", static_cast<Seconds>(dice.roll(1, 5)), dice.roll(0, 2)}};
        return one;
    };
    const int layers = dice.roll(1, 4);
    std::vector<TensorId> parameter, saved{tensor(Role::input)};
    std::vector<Op> late;
    for (int k = 0; k < layers; ++k) {
        parameter.push_back(tensor(Role::persistent));
        data.ops.push_back(op(Phase::forward, {saved.back(), parameter.back()}, {tensor(Role::activation)}));
        saved.push_back(data.ops.back().writes[0]);
    }
    TensorId gradient = saved.back();
    for (int k = layers; k-- > 0;) {
        std::vector<TensorId> reads{gradient, parameter[at(k)]};
        if (gradient != saved[at(k)]) {
            reads.push_back(saved[at(k)]);
        }
        const TensorId own = tensor(Role::gradient);
        gradient = tensor(Role::gradient);
        data.ops.push_back(op(Phase::backward, reads, {gradient, own}));
        for (int again = dice.roll(0, 2); again > 0; --again) {
            Op update = op(Phase::backward, {own, parameter[at(k)], tensor(Role::persistent)}, {});
            update.updates = {parameter[at(k)], update.reads.back()};
            update.once = true;
            (dice.roll(0, 1) ? data.ops : late).push_back(update);
        }
    }
    data.ops.insert(data.ops.end(), late.begin(), late.end());
    for (std::size_t k = 0; k < data.ops.size(); ++k) {
        data.ops[k].name = "o" + std::to_string(k);
    }
    return Graph(std::move(data));
}

} // namespace

TEST_CASE("a list of a whole step fits and comes again after any changes") {
    Dice dice(8);
    int planned = 0, shorter = 0, exchanged = 0, away = 0;
    for (int round = 0; round < 600; ++round) {
        const Graph graph = random_step(dice);
        const Graph whole = closed(graph).value();
        const auto border = static_cast<OpId>(graph.ops().size());
        const double rate = dice.roll(0, 3) > 0 ? 2.0 : 0;
        const Device device = tight(graph, rate, dice.roll(3, 9));
        const bool linked = rate > 0;
        const Progress progress;
        GapBuilder builder(whole, device, progress);
        std::vector<MapClass> classes;
        for (std::size_t gap = 0; gap < builder.gaps().size(); ++gap) {
            classes.push_back(linked && dice.roll(0, 2) == 0 ? MapClass::swap : MapClass::keep);
        }
        StepList list;
        if (!builder.build(classes, {}, {}, {}, device.memory, list)) {
            continue;
        }
        ++planned;
        away += !list.border.empty();
        Simulator simulator(graph, device, device.memory);
        RunList runs(whole, list, device.memory, linked);
        Seconds before = 0;
        std::mt19937_64 random(static_cast<std::uint64_t>(round));
        FetchPlaces places(whole, 0);
        for (int k = 0; k < 20; ++k) {
            Outline outline;
            outline.events = runs.events().value();
            REQUIRE(places.list_repeated(outline, runs.border(), device.memory, list));
            std::erase_if(list.steps, [&](const Step& step) { return step.verb == Verb::run && step.id == border; });
            const Seconds now = simulator.makespan(list);
            REQUIRE(now < Simulator::illegal);
            before = k == 0 ? now : before;
            shorter += now < before * (1 - 1e-9);
            change_some(runs, k % 2 ? 1.0 : 1e-3, random);
            if (!linked) {
                runs.trade(3.0, random);
            }
            exchanged += exchange_or_keep(runs, random);
        }
    }
    CHECK(planned > 200);
    CHECK(shorter > 0);
    CHECK(exchanged > 0);
    CHECK(away > 50);
}
