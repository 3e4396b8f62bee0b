// What is wanted, and what it costs again, against a search from scratch; plans of all classes run.
#include "instances.h"
#include "memsched/bounds/cut_bound.h"
#include "memsched/build/gap_builder.h"
#include "memsched/build/wanted.h"
#include "memsched/model/variants.h"
#include "memsched/planners/selective/orders.h"
#include "memsched/simulate/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace memsched;
using namespace memsched::testing;

namespace {

struct Moment {
    const Graph& graph;
    std::vector<std::uint8_t> at_hand;
    OpId now; // has not run
    OpId last;

    OpId next(TensorId tensor) const { // by following all that is away
        OpId found = Wanted::never;
        for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
            const Op& reader = graph.op(op);
            if (std::ranges::find(reader.reads, tensor) == reader.reads.end()) {
                continue;
            }
            if (op >= now) {
                return std::min(found, op);
            }
            for (const TensorId t : reader.writes) {
                found = at_hand[at(t)] ? found : std::min(found, next(t));
            }
        }
        return found;
    }

    Seconds again(TensorId tensor) const {
        const OpId writer = graph.writer(tensor);
        if (writer < 0 || writer >= last || graph.op(writer).once) {
            return Wanted::impossible;
        }
        Seconds cost = graph.op(writer).choices[0].time;
        for (const TensorId t : graph.op(writer).reads) {
            cost += at_hand[at(t)] ? 0 : again(t);
        }
        return cost;
    }
};

} // namespace

TEST_CASE("what is wanted next and its cost follow every change") {
    Dice dice(21);
    int wanted_for_others = 0, costs_more = 0;
    for (int round = 0; round < 200; ++round) {
        const Graph graph = to_graph(random_chain(dice, 1 + static_cast<int>(dice.roll(0, 7))));
        Wanted wanted(graph);
        const int ops = static_cast<int>(graph.ops().size());
        const OpId last = dice.roll(0, 1) ? Wanted::never : static_cast<OpId>(dice.roll(0, ops));
        wanted.reset(last);
        Moment moment{graph, std::vector<std::uint8_t>(graph.tensors().size(), 1), 0, last};
        for (int step = 0; step < 60; ++step) {
            const auto t = static_cast<TensorId>(dice.roll(0, static_cast<int>(graph.tensors().size()) - 1));
            const OpId writer = graph.writer(t);
            if (writer >= 0 && writer < moment.now) {
                moment.at_hand[at(t)] = !moment.at_hand[at(t)];
                wanted.set(t, moment.at_hand[at(t)] != 0);
            }
            if (dice.roll(0, 3) == 0 && at(moment.now) < graph.ops().size()) { // all that it reads comes first
                for (const TensorId read : graph.op(moment.now).reads) {
                    moment.at_hand[at(read)] = 1;
                    wanted.set(read, true);
                }
                wanted.ran();
                ++moment.now;
            }
            for (TensorId each = 0; at(each) < graph.tensors().size(); ++each) {
                if (graph.writer(each) < moment.now && dice.roll(0, 2) == 0) { // else it waits for a later question
                    CHECK(wanted.next(each) == moment.next(each));
                    CHECK(wanted.again(each) == moment.again(each));
                    const Seconds alone = graph.writer(each) < 0 ? 0 : graph.op(graph.writer(each)).choices[0].time;
                    costs_more += std::isfinite(moment.again(each)) && moment.again(each) > alone;
                    wanted_for_others += moment.next(each) != Wanted::never && moment.next(each) > moment.now;
                }
            }
        }
    }
    CHECK(costs_more > 1000);
    CHECK(wanted_for_others > 1000);
}

TEST_CASE("plans of random classes run, within their capacity and above the bound") {
    Dice dice(9);
    int built = 0, linked = 0, failed = 0;
    for (int round = 0; round < 300; ++round) {
        const Graph graph = to_graph(random_chain(dice, 1 + static_cast<int>(dice.roll(0, 6))));
        Device device;
        device.memory = min_memory(graph) + dice.roll(0, 12);
        device.d2h = device.h2d = static_cast<double>(dice.roll(0, 2));
        device.duplex = dice.roll(0, 1) != 0;
        const Progress progress;
        GapBuilder builder(graph, device, progress);
        std::vector<MapClass> classes;
        for (std::size_t g = 0; g < builder.gaps().size(); ++g) {
            const auto kind = static_cast<MapClass>(dice.roll(0, 2));
            classes.push_back(kind == MapClass::swap && device.d2h == 0 ? MapClass::keep : kind);
        }
        StepList list;
        linked += device.d2h > 0;
        if (!builder.build(classes, {}, {1, 1.0}, {}, device.memory - graph.resident(), list)) {
            failed += device.d2h > 0;
            continue;
        }
        ++built;
        const Timeline timeline = simulate(graph, list, device, device.memory);
        CHECK(timeline.makespan * (1 + 1e-9) >= cut_bound(graph, device, device.memory, Progress{}).seconds);
    }
    CHECK(built > 150);
    CHECK(50 * failed < linked); // with a link nearly everything has a way
}

TEST_CASE("a tidied order is an order") {
    const auto random_graph = [](Dice& dice) {
        GraphData data;
        for (int k = 0; k < 12; ++k) {
            const std::string name = std::to_string(k);
            data.tensors.push_back({name, dice.roll(0, 9), Role::activation});
            Op op{name, Phase::forward, "op", 0, {}, {k}, {{"default", 1, 0}}, false, {}, {}, {}, {}};
            for (int t = 0; t < k; ++t) {
                if (dice.roll(0, 4) == 0) {
                    op.reads.push_back(t);
                }
            }
            data.ops.push_back(op);
        }
        return Graph(std::move(data));
    };
    Dice dice(22);
    int changed = 0;
    for (int round = 0; round < 200; ++round) {
        const Graph graph = random_graph(dice);
        std::vector<OpId> listed(graph.ops().size());
        std::iota(listed.begin(), listed.end(), 0);
        const std::vector<OpId> order = tidied(graph, listed, {});
        std::vector<OpId> sorted = order;
        std::ranges::sort(sorted);
        CHECK(sorted == listed);
        const Graph moved = in_order(graph, order); // which checks that every op comes after what it reads
        CHECK(moved.ops().size() == graph.ops().size());
        changed += order != listed;
        for (const std::vector<OpId>& other : other_orders(graph, Progress{})) {
            CHECK(other != listed);
        }
    }
    CHECK(changed > 10);
}

TEST_CASE("early updates come right after what they wait for") {
    Dice dice(23);
    int early = 0;
    for (int round = 0; round < 200; ++round) {
        GraphData data;
        const OpId layers = dice.roll(1, 6);
        const auto add = [&](const std::string& name, Role role) {
            data.tensors.push_back({name, dice.roll(1, 9), role});
            return static_cast<TensorId>(data.tensors.size()) - 1;
        };
        const auto made = [](const std::string& name, int layer, const std::vector<TensorId>& reads,
                             const std::vector<TensorId>& writes, const std::vector<TensorId>& updates) {
            Op op;
            op.name = name;
            op.phase = Phase::backward;
            op.layer = layer;
            op.reads = reads;
            op.writes = writes;
            op.choices = {{"default", 1, 0}};
            op.once = !updates.empty();
            op.updates = updates;
            return op;
        };
        std::vector<TensorId> weights, gradients;
        for (OpId k = 0; k < layers; ++k) {
            weights.push_back(add("w" + std::to_string(k), Role::persistent));
            gradients.push_back(add("g" + std::to_string(k), Role::gradient));
            Op op = made("B" + std::to_string(k), k, {weights.back()}, {gradients.back()}, {});
            for (OpId other = 0; other < k; ++other) {
                if (dice.roll(0, 2) == 0) { // the weight is read again, so that its update has to wait
                    op.reads.push_back(weights[at(other)]);
                }
            }
            data.ops.push_back(op);
        }
        for (OpId k = 0; k < layers; ++k) {
            const std::string name = std::to_string(k);
            const TensorId count = add("n" + name, Role::persistent), done = add("d" + name, Role::gradient);
            data.tensors[at(done)].bytes = 0;
            const TensorId weight = weights[at(k)];
            data.ops.push_back(made("C" + name, layers, {count}, {done}, {count}));
            data.ops.push_back(made("U" + name, layers, {gradients[at(k)], weight, done}, {}, {weight}));
        }
        const Graph graph(std::move(data)), waits = with_control_edges(graph);
        const std::vector<std::vector<OpId>> orders = other_orders(graph, Progress{});
        for (const std::vector<OpId>& order : orders) {
            CHECK(in_order(waits, order).ops().size() == graph.ops().size()); // which checks the order
        }
        std::vector<OpId> last(at(layers)); // by layer: the last op that its update waits for, but for its counter
        for (OpId k = 0; k < layers; ++k) {
            for (OpId op = 0; op < layers; ++op) {
                const auto& reads = graph.op(op).reads;
                last[at(k)] = std::ranges::count(reads, weights[at(k)]) > 0 ? op : last[at(k)];
            }
        }
        if (std::ranges::all_of(last, [&](OpId op) { return op == layers - 1; })) {
            continue; // all are as early as they can be
        }
        ++early;
        CHECK(std::ranges::any_of(orders, [&](const std::vector<OpId>& order) {
            std::vector<OpId> place(graph.ops().size());
            for (std::size_t k = 0; k < place.size(); ++k) {
                place[at(order[k])] = static_cast<OpId>(k);
            }
            bool all = true;
            for (OpId k = 0; k < layers; ++k) {
                const OpId counter = layers + 2 * k, update = counter + 1;
                all = all && place[at(update)] == place[at(counter)] + 1;
                for (OpId p = place[at(last[at(k)])] + 1; p < place[at(update)]; ++p) {
                    all = all && order[at(p)] >= layers; // nothing but updates in between
                }
            }
            return all;
        }));
    }
    CHECK(early > 100);
}
