#include "memsched/model/variants.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace memsched {

Graph with_control_edges(const Graph& graph) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), graph.ops()};
    std::vector<std::vector<OpId>> before(graph.ops().size()); // by op: those that must have run
    const IdLists readers = readers_of(graph);
    for (std::size_t t = 0; t < data.tensors.size(); ++t) {
        if (data.tensors[t].role == Role::input) {
            data.tensors[t].role = Role::weight;
        }
        if (!data.tensors[t].persistent()) {
            continue;
        }
        data.tensors[t].role = Role::weight;
        OpId update = -1;        // the last one
        std::vector<OpId> since; // what has read the tensor since
        for (const OpId op : readers[t]) {
            if (update >= 0) {
                before[at(op)].push_back(update);
            }
            const std::vector<TensorId>& updates = graph.op(op).updates;
            if (std::ranges::find(updates, static_cast<TensorId>(t)) != updates.end()) {
                before[at(op)].insert(before[at(op)].end(), since.begin(), since.end());
                since.clear();
                update = op;
            } else {
                since.push_back(op);
            }
        }
    }
    std::set<std::string> names;
    for (const Tensor& tensor : data.tensors) {
        names.insert(tensor.name);
    }
    std::vector<TensorId> done(data.ops.size(), -1); // by op: the tensor that says so
    for (std::size_t op = 0; op < data.ops.size(); ++op) {
        std::ranges::sort(before[op]);
        const auto beyond = std::ranges::unique(before[op]);
        before[op].erase(beyond.begin(), beyond.end());
        for (const OpId earlier : before[op]) {
            if (done[at(earlier)] < 0) {
                std::string name = data.ops[at(earlier)].name + ":done";
                while (!names.insert(name).second) {
                    name += "'";
                }
                done[at(earlier)] = static_cast<TensorId>(data.tensors.size());
                data.tensors.push_back({name, 0, Role::activation});
                data.ops[at(earlier)].writes.push_back(done[at(earlier)]);
            }
            data.ops[op].reads.push_back(done[at(earlier)]);
        }
        data.ops[op].updates.clear();
        data.ops[op].host_time.reset();
    }
    return Graph(std::move(data));
}

std::optional<Graph> without_host(const Graph& graph) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), graph.ops()};
    bool some = false;
    for (Op& op : data.ops) {
        some |= op.host_time.has_value();
        op.host_time.reset();
    }
    return some ? std::optional<Graph>(std::in_place, std::move(data)) : std::nullopt;
}

} // namespace memsched
