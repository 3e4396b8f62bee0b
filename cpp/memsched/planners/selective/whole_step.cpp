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

std::vector<std::size_t> longest_across_border(const Graph& graph, const std::vector<Gap>& gaps) {
    std::vector<Seconds> begin{0},
        first(graph.tensors().size(), -1); // of each op, and of the first that reads a tensor
    for (const Op& op : graph.ops()) {
        for (const TensorId t : op.reads) {
            first[at(t)] = first[at(t)] < 0 ? begin.back() : first[at(t)];
        }
        begin.push_back(begin.back() + op.choices[0].time);
    }
    std::vector<std::pair<Seconds, std::size_t>> found; // the time in between, negative
    for (std::size_t g = 0; g < gaps.size(); ++g) {
        if (graph.tensor(gaps[g].tensor).persistent() && at(gaps[g].to) >= graph.ops().size()) {
            found.emplace_back(begin[at(gaps[g].from) + 1] - begin.back() - first[at(gaps[g].tensor)], g);
        }
    }
    std::ranges::sort(found);
    std::vector<std::size_t> order;
    for (const auto& [seconds, g] : found) {
        order.push_back(g);
    }
    return order;
}

} // namespace memsched
