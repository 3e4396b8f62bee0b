#include "memsched/model/lifetimes.h"

namespace memsched {

Lifetimes::Lifetimes(const Graph& graph)
    : turn(static_cast<OpId>(graph.ops().size())), birth(graph.tensors().size(), -1), last_forward(birth),
      first_backward(birth), last_use(birth), empty(birth.size()), usage(graph.ops().size(), 0), need(usage) {
    const auto& ops = graph.ops();
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const auto op = static_cast<OpId>(i);
        const bool forward = ops[i].phase == Phase::forward;
        turn = forward ? turn : std::min(turn, op);
        for (const TensorId t : ops[i].writes) {
            const auto id = at(t);
            birth[id] = op;
            last_forward[id] = forward ? op : last_forward[id];
        }
        for (const TensorId t : ops[i].reads) {
            const auto id = at(t);
            last_use[id] = op;
            if (forward) {
                last_forward[id] = op;
            } else if (first_backward[id] < 0) {
                first_backward[id] = op;
            }
        }
        need[i] = ops[i].host_time ? 0 : bytes_of(graph, ops[i].reads) + least_run(graph, ops[i]).bytes;
    }
    for (std::size_t t = 0; t < empty.size(); ++t) {
        empty[t] = graph.tensors()[t].bytes == 0;
    }
    least = std::max(source_bytes(graph) - persistent_bytes(graph), *std::ranges::max_element(need));
    std::vector<Bytes> change(ops.size() + 1, 0);
    for (std::size_t t = 0; t < birth.size(); ++t) {
        const Bytes bytes = graph.tensors()[t].bytes;
        change[at(std::max(birth[t], 0))] += bytes;
        const bool stays = last_use[t] < 0 || (graph.persistent() && graph.tensors()[t].source());
        change[stays ? ops.size() : at(last_use[t]) + 1] -= bytes;
    }
    Bytes held = 0;
    for (std::size_t i = 0; i < ops.size(); ++i) {
        held += change[i];
        usage[i] = held + ops[i].choices[at(baseline(ops[i]))].workspace;
    }
}

std::vector<TensorId> feature_maps(const Graph& graph, const Lifetimes& lifetimes) {
    std::vector<TensorId> maps;
    for (OpId op = 0; op < lifetimes.turn; ++op) {
        for (const TensorId t : graph.op(op).writes) {
            const bool activation = graph.tensor(t).role == Role::activation && !lifetimes.empty[at(t)];
            if (activation && lifetimes.last_use[at(t)] >= lifetimes.turn) {
                maps.push_back(t);
            }
        }
    }
    return maps;
}

Bytes min_memory(const Graph& graph) { return graph.resident() + Lifetimes(graph).least; }

Bytes peak_memory(const Graph& graph) {
    const Lifetimes lifetimes(graph);
    return graph.resident() + *std::ranges::max_element(lifetimes.usage);
}

} // namespace memsched
