// The minimum cut at the start of an op is the least over all choices of what runs again.
#include "instances.h"
#include "memsched/bounds/cut_bound.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace memsched;
using namespace memsched::testing;

namespace {

struct Sides { // of op p
    std::vector<std::uint8_t> earlier, later;
};

Sides sides(const Graph& graph, OpId p) {
    Sides found{std::vector<std::uint8_t>(graph.ops().size(), 0), std::vector<std::uint8_t>(graph.ops().size(), 0)};
    const auto reaches = [&](OpId from, OpId to) { // by repeated relaxation, slowly
        std::vector<std::uint8_t> reached(graph.ops().size(), 0);
        reached[at(from)] = 1;
        for (OpId op = from + 1; op <= to; ++op) {
            for (const TensorId t : graph.op(op).reads) {
                reached[at(op)] |= graph.writer(t) >= 0 && reached[at(graph.writer(t))];
            }
        }
        return reached[at(to)] != 0;
    };
    for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
        found.earlier[at(op)] = op < p && reaches(op, p);
        found.later[at(op)] = op > p && reaches(p, op);
    }
    return found;
}

// Ops that read any of the three tensors before, or of the inputs, so that many are in no order. With repeated, some
// also read parameters, and the last ones update them, here or on the host.
Graph random_dag(Dice& dice, int count, bool repeated = false) {
    GraphData data;
    const auto tensor = [&](Role role) {
        data.tensors.push_back({"t" + std::to_string(data.tensors.size()), dice.roll(0, 9), role});
        return static_cast<TensorId>(data.tensors.size() - 1);
    };
    for (int k = dice.roll(1, 2); k > 0; --k) {
        tensor(Role::input);
    }
    const auto parameter = static_cast<TensorId>(data.tensors.size());
    const int parameters = repeated ? 2 : 0;
    for (int k = 0; k < parameters; ++k) {
        tensor(Role::persistent);
    }
    for (int k = 0; k < count; ++k) {
        Op op;
        op.name = "o" + std::to_string(k);
        for (int one = 0; one < parameters; ++one) {
            if (dice.roll(0, 2) == 0) {
                op.reads.push_back(parameter + one);
            }
        }
        const int known = static_cast<int>(data.tensors.size());
        for (int t = std::max(0, known - 4); t < known; ++t) {
            if (dice.roll(0, 2) == 0 && data.tensors[at(t)].role != Role::persistent) {
                op.reads.push_back(t);
            }
        }
        op.writes = {tensor(Role::activation)};
        op.choices = {{"one", static_cast<Seconds>(dice.roll(0, 5)), dice.roll(0, 2)}};
        op.once = dice.roll(0, 3) == 0;
        data.ops.push_back(op);
    }
    for (int k = 0; k < parameters; ++k) {
        Op update;
        update.name = "u" + std::to_string(k);
        update.phase = Phase::backward;
        update.reads = {static_cast<TensorId>(data.tensors.size()) - 1, parameter + k};
        update.updates = {parameter + k};
        update.choices = {{"one", static_cast<Seconds>(dice.roll(0, 5)), 0}};
        update.once = true;
        if (dice.roll(0, 1) == 0) {
            update.host_time = 1;
        }
        data.ops.push_back(update);
    }
    return Graph(std::move(data));
}

// The least of time + price * bytes over all sets of ops that run at p or later. In any order, what is neither an
// ancestor nor a descendant of p may then run for the first time, at no cost. Of what is repeated, all parameters that
// some op reads on the device and all inputs are held.
double least_by_force(const Graph& graph, OpId p, Seconds price, Retention::Order order) {
    Sides side = sides(graph, p);
    for (OpId op = 0; order == Retention::Order::listed && at(op) < graph.ops().size(); ++op) {
        side.earlier[at(op)] = op < p;
        side.later[at(op)] = op > p;
    }
    std::vector<OpId> ops;
    for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
        if (op != p && !side.later[at(op)] && !(side.earlier[at(op)] && graph.op(op).once)) {
            ops.push_back(op);
        }
    }
    double least = never;
    for (std::size_t set = 0; set < std::size_t{1} << ops.size(); ++set) {
        std::vector<std::uint8_t> again(graph.ops().size(), 0);
        double value = 0;
        for (std::size_t k = 0; k < ops.size(); ++k) {
            again[at(ops[k])] = set >> k & 1;
            value += again[at(ops[k])] && side.earlier[at(ops[k])] ? fastest(graph.op(ops[k])).time : 0;
        }
        for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
            const OpId writer = graph.writer(t);
            const auto read_by = [&](const std::vector<std::uint8_t>& some) {
                for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
                    const auto& reads = graph.op(op).reads;
                    if (!graph.op(op).host_time && some[at(op)] &&
                        std::find(reads.begin(), reads.end(), t) != reads.end()) {
                        return true;
                    }
                }
                return false;
            };
            const auto& own = graph.op(p).reads;
            const bool fixed = std::find(own.begin(), own.end(), t) != own.end();
            const bool had = writer != p && (writer < 0 || !side.later[at(writer)]);
            const bool repeated =
                graph.persistent() && writer < 0 &&
                (!graph.tensor(t).persistent() || read_by(std::vector<std::uint8_t>(again.size(), 1)));
            const bool wanted = repeated || (had && (read_by(side.later) || read_by(again)));
            if (fixed || (wanted && !(writer >= 0 && again[at(writer)]))) {
                value += price * static_cast<double>(graph.tensor(t).bytes);
            }
        }
        least = std::min(least, value);
    }
    return least;
}

} // namespace

TEST_CASE("the cut at an op is the least over all sets of ops that run at it or later") {
    Dice dice(7);
    const Progress progress;
    Pace pace(progress);
    for (int round = 0; round < 240; ++round) {
        const Graph graph = round % 3 == 0 ? to_graph(random_chain(dice, dice.roll(1, 5)))
                                           : random_dag(dice, dice.roll(1, 6), round % 3 == 1);
        const auto order = round % 2 == 0 ? Retention::Order::any : Retention::Order::listed;
        const auto p = static_cast<OpId>(dice.roll(0, static_cast<int>(graph.ops().size()) - 1));
        if (graph.op(p).host_time) {
            continue;
        }
        Retention retention(graph, p, order);
        for (const Seconds price : {0.01, 0.3, 1.0, 7.0}) {
            const Retention::Point found = retention.cheapest(price, pace);
            const double least = least_by_force(graph, p, found.price, order);
            CHECK(found.least <= least * (1 + 1e-9) + 1e-9);
            CHECK(found.least >= least * (1 - 1e-6) - 1e-6);
            CHECK(found.again + found.price * static_cast<double>(found.held) == doctest::Approx(least));
        }
    }
}

TEST_CASE("where everything fits the bound is the time of all ops") {
    Dice dice(8);
    for (int round = 0; round < 20; ++round) {
        const Graph graph = to_graph(random_chain(dice, 5));
        Seconds total = 0;
        for (const Op& op : graph.ops()) {
            total += fastest(op).time;
        }
        Device device;
        device.memory = peak_memory(graph);
        const CutBound bound = cut_bound(graph, device, device.memory, Progress{});
        CHECK(bound.op == -1);
        CHECK(bound.seconds == doctest::Approx(total));
        CHECK(cut_bound(graph, device, min_memory(graph) - 1, Progress{}).seconds == never);
    }
}
