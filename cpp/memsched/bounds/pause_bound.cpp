#include "memsched/bounds/pause_bound.h"

#include "memsched/bounds/cut_bound.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <utility>
#include <vector>

namespace memsched {
namespace {

constexpr int most_states = 2000;              // of the search for one pause; what it has then is a bound, too
constexpr std::int64_t most_work = 20'000'000; // of all searches, in steps: some tenths of a second

struct State {
    Seconds cost = 0; // the larger of the two
    int arrived = 0;
    Seconds link = 0, runs = 0;
    Bytes held = 0;
    std::vector<TensorId> wanted; // the one of the latest writer last

    bool operator>(const State& other) const { return std::pair(cost, arrived) > std::pair(other.cost, other.arrived); }
};

// The graph up to the end of a pass.
Graph until(const Graph& graph, OpId op) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), {}, {}};
    std::vector<TensorId> number(graph.tensors().size(), -1);
    for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
        if (graph.writer(t) <= op) {
            number[at(t)] = static_cast<TensorId>(data.tensors.size());
            data.tensors.push_back(graph.tensor(t));
        }
    }
    for (OpId k = 0; k <= op; ++k) {
        data.ops.push_back(graph.op(k));
        for (auto* ids : {&data.ops.back().reads, &data.ops.back().writes, &data.ops.back().tape}) {
            for (TensorId& t : *ids) {
                t = number[at(t)];
            }
        }
    }
    return Graph(std::move(data));
}

// The ops that are in order with all others: each op listed before one must run before it, and each after it, after.
std::vector<OpId> passes(const Graph& graph) {
    const auto count = static_cast<OpId>(graph.ops().size());
    std::vector<OpId> next_reader(at(count), count), earliest(at(count) + 1, count), found;
    for (OpId op = count - 1; op >= 0; --op) {
        OpId last_writer = -1;
        for (const TensorId t : graph.op(op).reads) {
            if (const OpId writer = graph.writer(t); writer >= 0) {
                last_writer = std::max(last_writer, writer);
                next_reader[at(writer)] = op;
            }
        }
        earliest[at(op)] = std::min(earliest[at(op) + 1], last_writer);
    }
    OpId furthest = -1; // of the next readers of the ops before
    for (OpId op = 0; op < count; ++op) {
        if (furthest <= op && op <= earliest[at(op) + 1]) {
            found.push_back(op);
        }
        furthest = std::max(furthest, next_reader[at(op)]);
    }
    return found;
}

// The least seconds from the end of an op to the start of the next one listed, if both are passes and run once. Each
// tensor that the next op reads was there when the op ended, beside what that touches; or is prefetched; or its
// writer runs again, for which its own reads must be there likewise. A search by cost.
Seconds least_pause(const Graph& graph, OpId op, const Device& device, Bytes capacity, std::int64_t& work, Pace& pace) {
    const Op &own = graph.op(op), &next = graph.op(op + 1);
    const Bytes room = capacity - least_run(graph, own).bytes - bytes_of(graph, own.reads);
    const auto earlier = [&](TensorId one, TensorId other) {
        return std::pair(graph.writer(one), one) < std::pair(graph.writer(other), other);
    };
    std::vector<TensorId> touched = own.reads;
    touched.insert(touched.end(), own.writes.begin(), own.writes.end());
    std::ranges::sort(touched);
    const auto want = [&](std::vector<TensorId>& wanted, const std::vector<TensorId>& tensors) {
        std::ranges::copy_if(tensors, std::back_inserter(wanted),
                             [&](TensorId t) { return !std::ranges::binary_search(touched, t); });
        std::ranges::sort(wanted, earlier);
        wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
    };
    std::priority_queue<State, std::vector<State>, std::greater<>> states;
    int arrived = 0;
    const auto add = [&](Seconds link, Seconds runs, Bytes held, std::vector<TensorId> wanted) {
        states.push({std::max(link, runs), ++arrived, link, runs, held, std::move(wanted)});
    };
    std::vector<TensorId> wanted;
    want(wanted, next.reads);
    add(0, 0, 0, std::move(wanted));
    for (int seen = 0; seen < most_states && work > 0 && !states.empty(); ++seen) {
        State state = states.top();
        states.pop();
        if (state.wanted.empty()) {
            return state.cost;
        }
        const std::int64_t steps = Pace::named + 8 * static_cast<std::int64_t>(state.wanted.size());
        work -= steps;
        pace.spend(steps);
        const TensorId tensor = state.wanted.back();
        state.wanted.pop_back();
        const Bytes bytes = graph.tensor(tensor).bytes;
        if (state.held + bytes <= room) {
            add(state.link, state.runs, state.held + bytes, state.wanted);
        }
        if (device.d2h > 0 && device.h2d > 0) {
            add(state.link + static_cast<double>(bytes) / device.h2d, state.runs, state.held, state.wanted);
        }
        if (const OpId writer = graph.writer(tensor); graph.repeatable(tensor)) {
            const Op& again = graph.op(writer);
            std::erase_if(state.wanted, [&](TensorId t) { return graph.writer(t) == writer; });
            want(state.wanted, again.reads);
            add(state.link, state.runs + fastest(again).time, state.held, std::move(state.wanted));
        }
    }
    return states.empty() ? never : states.top().cost;
}

} // namespace

PauseBound pause_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress) {
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    PauseBound best;
    Pace pace(progress);
    std::int64_t work = most_work;
    Seconds pauses = 0, after = 0; // from the end of an op on
    try {
        const std::vector<OpId> all = passes(graph);
        for (std::size_t k = all.size(); k-- > 0;) {
            const OpId op = all[k];
            if (k + 1 < all.size() && all[k + 1] == op + 1 && graph.op(op).once && graph.op(op + 1).once) {
                const Seconds pause = least_pause(graph, op, device, capacity, work, pace);
                pauses += pause;
                best.op = pause > 0 ? op : best.op;
            }
        }
        if (best.op < 0) {
            return best;
        }
        for (auto op = at(best.op) + 1; op < graph.ops().size(); ++op) {
            after += fastest(graph.ops()[op]).time;
        }
        best.seconds = cut_bound(until(graph, best.op), device, budget, progress).seconds + after + pauses;
    } catch (const Stopped&) {
        return {};
    }
    return best;
}

} // namespace memsched
