#include "memsched/planners/selective/whole_step.h"

#include <algorithm>
#include <utility>

namespace memsched {

std::optional<Graph> closed(const Graph& graph) {
    std::vector<TensorId> stay;
    for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
        if (graph.tensor(t).source() && !graph.tensor(t).persistent()) {
            stay.push_back(t);
        }
    }
    if (!graph.persistent() || stay.empty()) {
        return {};
    }
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), graph.ops()};
    Op last;
    last.name = "border";
    while (std::ranges::find(data.ops, last.name, &Op::name) != data.ops.end()) {
        last.name += "'";
    }
    last.phase = Phase::backward;
    last.reads = std::move(stay);
    last.choices = {{}};
    last.once = true;
    data.ops.push_back(std::move(last));
    return Graph(std::move(data));
}

namespace {

struct Clock {
    explicit Clock(const Graph& graph) : first(graph.tensors().size(), -1) {
        for (const Op& op : graph.ops()) {
            for (const TensorId t : op.reads) {
                first[at(t)] = first[at(t)] < 0 ? begin.back() : first[at(t)];
            }
            begin.push_back(begin.back() + op.choices[0].time);
        }
    }
    // From the end of an op to the first that reads the tensor in the next repetition, negative.
    Seconds across(OpId op, TensorId tensor) const { return begin[at(op) + 1] - begin.back() - first[at(tensor)]; }

    std::vector<Seconds> begin{0}, first; // of each op, and of the first that reads a tensor
};

// The indices in ascending order of their values, the first of equal ones first.
std::vector<std::int32_t> ordered_by(const std::vector<Seconds>& values) {
    std::vector<std::int32_t> order = all_ids(values.size());
    std::ranges::stable_sort(order, {}, [&](std::int32_t k) { return values[at(k)]; });
    return order;
}

} // namespace

std::vector<std::size_t> longest_across_border(const Graph& graph, const std::vector<Gap>& gaps) {
    const Clock clock(graph);
    std::vector<std::size_t> across;
    std::vector<Seconds> between; // the time, negative
    for (std::size_t g = 0; g < gaps.size(); ++g) {
        if (graph.tensor(gaps[g].tensor).persistent() && at(gaps[g].to) >= graph.ops().size()) {
            across.push_back(g);
            between.push_back(clock.across(gaps[g].from, gaps[g].tensor));
        }
    }
    std::vector<std::size_t> order;
    for (const std::int32_t k : ordered_by(between)) {
        order.push_back(across[at(k)]);
    }
    return order;
}

std::vector<std::vector<OpId>> latest_on_host(const Graph& graph) {
    const Clock clock(graph);
    std::vector<std::vector<OpId>> groups;
    std::vector<Seconds> shortest;                            // of all that a group updates, negative
    std::vector<std::size_t> group_of(graph.ops().size(), 0); // of those that may run there
    for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
        if (!graph.op(op).host_time) {
            continue;
        }
        std::size_t group = groups.size();
        for (const TensorId t : graph.op(op).reads) {
            const OpId writer = graph.writer(t);
            group = writer >= 0 && graph.op(writer).host_time ? group_of[at(writer)] : group;
        }
        if (group == groups.size()) {
            groups.emplace_back();
            shortest.push_back(-never);
        }
        group_of[at(op)] = group;
        groups[group].push_back(op);
        for (const TensorId t : graph.op(op).updates) {
            shortest[group] = std::max(shortest[group], clock.across(op, t));
        }
    }
    std::vector<std::vector<OpId>> sorted;
    for (const std::int32_t group : ordered_by(shortest)) {
        sorted.push_back(std::move(groups[at(group)]));
    }
    return sorted;
}

std::vector<std::uint8_t> too_large(const Graph& graph, Bytes capacity) {
    std::vector<std::uint8_t> found;
    for (OpId id = 0; at(id) < graph.ops().size(); ++id) {
        const Op& op = graph.op(id);
        if (op.host_time && bytes_of(graph, op.reads) + run_bytes(graph, op, false) > capacity) {
            found.resize(graph.ops().size(), 0);
            found[at(id)] = 1;
        }
    }
    return found;
}

} // namespace memsched
