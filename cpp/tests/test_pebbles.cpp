// The game of pebbles: its plans run in the memory that they were given, and what it says cannot be done cannot.
#include "instances.h"
#include "memsched/planners/remat/pebbles.h"
#include "memsched/simulate/simulate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>

using namespace memsched;
using namespace memsched::testing;

namespace {

// Forward ops with a tape, and backward ops that read it.
Graph random_training(Dice& dice, int layers) {
    GraphData data;
    data.resident = dice.roll(0, 3);
    const auto tensor = [&](const std::string& name, Role role) {
        data.tensors.push_back({name, dice.roll(0, 4), role});
        return static_cast<TensorId>(data.tensors.size() - 1);
    };
    std::vector<TensorId> maps{tensor("x", Role::input)}, tapes;
    for (int k = 0; k < 2 * layers; ++k) {
        Op op;
        op.name = "o" + std::to_string(k);
        op.choices = {{"slow", 2, 0}, {"fast", 1, dice.roll(0, 3)}};
        op.once = dice.roll(0, 3) == 0;
        op.reads = {maps.back()};
        if (k < layers) {
            maps.push_back(tensor("a" + std::to_string(k), Role::activation));
            op.writes = {maps.back()};
            if (dice.roll(0, 1) == 0) {
                tapes.push_back(tensor("t" + std::to_string(k), Role::activation));
                op.writes.push_back(tapes.back());
                op.tape = {tapes.back()};
            }
        } else {
            op.phase = Phase::backward;
            if (!tapes.empty()) {
                op.reads.push_back(tapes.back());
                tapes.pop_back();
            }
            const TensorId earlier = static_cast<TensorId>(dice.roll(0, static_cast<int>(maps.size()) - 2));
            if (std::find(op.reads.begin(), op.reads.end(), earlier) == op.reads.end()) {
                op.reads.push_back(earlier);
            }
            maps.push_back(tensor("d" + std::to_string(k), Role::gradient));
            op.writes = {maps.back()};
        }
        data.ops.push_back(op);
    }
    return Graph(std::move(data));
}

// Whether any list of steps runs every op, by all states that single steps reach.
bool can_be_done(const Graph& graph, const Device& device) {
    using State = std::array<unsigned, 3>; // ran, on the device, on the host
    const Bytes capacity = device.memory - graph.resident();
    const auto bit = [](std::int32_t id) { return 1U << id; };
    const auto bytes = [&](unsigned tensors) {
        Bytes sum = 0;
        for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
            sum += (tensors >> t & 1U) != 0 ? graph.tensors()[t].bytes : 0;
        }
        return sum;
    };
    std::set<State> known;
    std::vector<State> open;
    const auto reach = [&](const State& state) {
        if (bytes(state[1]) <= capacity && bytes(state[2]) <= device.host_memory.value_or(state[2]) &&
            known.insert(state).second) {
            open.push_back(state);
        }
    };
    unsigned inputs = 0;
    for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
        inputs |= graph.tensor(t).role == Role::input ? bit(t) : 0;
    }
    reach({0, inputs, 0});
    while (!open.empty()) {
        const auto [ran, here, host] = open.back();
        open.pop_back();
        if (ran == bit(static_cast<std::int32_t>(graph.ops().size())) - 1) {
            return true;
        }
        for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
            const bool away = (host & bit(t)) != 0, is_here = (here & bit(t)) != 0;
            if (is_here) {
                reach({ran, here & ~bit(t), host});
            }
            if (is_here && !away && device.d2h > 0) {
                reach({ran, here, host | bit(t)});
            }
            if (away && !is_here) {
                reach({ran, here | bit(t), host});
            }
        }
        for (OpId id = 0; at(id) < graph.ops().size(); ++id) {
            const Op& op = graph.op(id);
            const auto there = [&, now = here](TensorId t) { return (now & bit(t)) != 0; };
            if ((op.once && (ran & bit(id)) != 0) || !std::all_of(op.reads.begin(), op.reads.end(), there) ||
                std::any_of(op.writes.begin(), op.writes.end(), there)) {
                continue;
            }
            for (const bool skip : {false, true}) {
                unsigned after = here;
                for (const TensorId t : op.writes) {
                    const bool left_out = skip && std::find(op.tape.begin(), op.tape.end(), t) != op.tape.end();
                    after |= left_out ? 0 : bit(t);
                }
                if (bytes(after) + op.choices[0].workspace <= capacity) { // the first needs none
                    reach({ran | bit(id), after, host});
                }
            }
        }
    }
    return false;
}

} // namespace

TEST_CASE("pebbles finds a plan that runs, or there is none") {
    Dice dice(1);
    int found = 0, proven = 0;
    for (int round = 0; round < 300; ++round) {
        const Graph graph = random_training(dice, dice.roll(1, 2));
        Device device = device_of(graph.resident() + dice.roll(1, 16), dice.roll(0, 2));
        if (dice.roll(0, 1) == 0) {
            device.host_memory = dice.roll(0, 4);
        }
        const PebbleGame game = play_pebbles(graph, device, 1'000'000, Progress{});
        REQUIRE(game.steps.has_value() == can_be_done(graph, device));
        REQUIRE(game.proven != game.steps.has_value());
        REQUIRE(game.states <= 1'000'000);
        if (game.steps) {
            REQUIRE(Simulator(graph, device, device.memory).makespan(*game.steps) != Simulator::illegal);
        }
        found += game.steps.has_value();
        proven += game.proven;
    }
    CHECK(found > 50);
    CHECK(proven > 50);
}

TEST_CASE("pebbles proves nothing where it was stopped, or had too few states") {
    Dice dice(2);
    const Graph graph = random_training(dice, 2);
    const Device device = device_of(1'000, 1);
    const PebbleGame few = play_pebbles(graph, device, 1, Progress{});
    CHECK_FALSE(few.steps);
    CHECK_FALSE(few.proven);
    GraphData data;
    data.ops.emplace_back();
    data.ops[0].name = "o";
    data.ops[0].choices = {{"default", 1, 0}};
    for (std::size_t k = 0; k <= most_pebbles; ++k) {
        data.tensors.push_back({"x" + std::to_string(k), 1, Role::input});
    }
    const PebbleGame large = play_pebbles(Graph(data), device, 1'000, Progress{});
    CHECK_FALSE(large.steps);
    CHECK_FALSE(large.proven);
}

TEST_CASE("pebbles takes as many ops and tensors as a word has bits") {
    GraphData data;
    data.tensors.push_back({"x", 1, Role::input});
    for (std::size_t k = 0; k < most_pebbles; ++k) {
        Op op;
        op.name = "o" + std::to_string(k);
        op.choices = {{"default", 1, 0}};
        op.reads = {static_cast<TensorId>(k)};
        if (k + 1 < most_pebbles) {
            data.tensors.push_back({"t" + std::to_string(k), 1, Role::activation});
            op.writes = {static_cast<TensorId>(k) + 1};
        }
        data.ops.push_back(op);
    }
    const Graph graph(data);
    const PebbleGame enough = play_pebbles(graph, device_of(2, 0), 100'000, Progress{});
    REQUIRE(enough.steps);
    CHECK(Simulator(graph, device_of(2, 0), 2).makespan(*enough.steps) == static_cast<Seconds>(most_pebbles));
    CHECK(play_pebbles(graph, device_of(1, 0), 100'000, Progress{}).proven);
}
