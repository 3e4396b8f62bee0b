#include "memsched/planners/modnn/facts.h"

#include "memsched/planners/modnn/modnn.h"

#include <algorithm>

namespace memsched {
namespace {

// The largest of reads, writes and workspace over the ops, each with the algorithm that `choose` names.
template <class Choose> Bytes largest_need(const Graph& graph, const Choose& choose) {
    Bytes most = 0;
    for (const Op& op : graph.ops()) {
        most = std::max(most, choose(op).workspace + written_bytes(graph, op) + bytes_of(graph, op.reads));
    }
    return most;
}

} // namespace

ModnnFacts::ModnnFacts(const Graph& g) : graph(g), uses(readers_of(g)), over(g.ops().size()) {
    for (const Op& op : g.ops()) {
        base.push_back(baseline(op));
        quickest.push_back(fastest(op).time);
    }
    for (std::size_t t = 0; t < uses.size() && !over.empty(); ++t) {
        const Role role = g.tensors()[t].role;
        if (role != Role::weight && (role == Role::input || !uses[t].empty())) {
            over[uses[t].empty() ? 0 : at(uses[t].back())].push_back(static_cast<TensorId>(t));
        }
    }
}

Bytes ModnnFacts::base_workspace(OpId op) const { return graph.op(op).choices[at(base[at(op)])].workspace; }

bool ModnnFacts::goes_to_top(TensorId owner) const {
    return owner == Segment::workspace || graph.tensor(owner).role == Role::gradient;
}

OpId ModnnFacts::next_use(TensorId t, OpId behind) const {
    const auto found = std::upper_bound(uses[at(t)].begin(), uses[at(t)].end(), behind);
    return found == uses[at(t)].end() ? static_cast<OpId>(graph.ops().size()) : *found;
}

Flags ModnnFacts::touched(OpId first, OpId last) const {
    Flags flags = flags_of(uses.size(), graph.op(first).writes);
    for (OpId op = first; op <= last; ++op) {
        for (const TensorId t : graph.op(op).reads) {
            flags[at(t)] = 1;
        }
    }
    return flags;
}

Tensors ModnnFacts::by_size(Tensors tensors) const {
    std::erase_if(tensors, [&](TensorId t) { return bytes(t) == 0; });
    std::ranges::stable_sort(tensors, [&](TensorId a, TensorId b) { return bytes(a) > bytes(b); });
    return tensors;
}

Bytes modnn_min_memory(const Graph& graph) {
    const auto least = [](const Op& op) -> const Choice& { return op.choices[at(baseline(op))]; };
    return graph.resident() + std::max(source_bytes(graph), largest_need(graph, least));
}

Bytes need_of_fastest(const Graph& graph) { return largest_need(graph, fastest); }

} // namespace memsched
