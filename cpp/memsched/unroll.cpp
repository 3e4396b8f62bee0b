#include "memsched/unroll.h"

#include "memsched/errors.h"

#include <algorithm>

namespace memsched {
namespace {

std::string instance_name(const std::string& name, int count) {
    return count == 1 ? name : name + "#" + std::to_string(count);
}

} // namespace

Unrolled unroll(const Graph& graph, std::span<const Run> runs) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), {}, {}};
    std::vector<TensorId> origin;
    std::vector<TensorId> current(graph.tensors().size(), -1); // the instance that a read would find
    std::vector<int> written(graph.tensors().size(), 0), run(graph.ops().size(), 0);
    const auto instance = [&](TensorId t) {
        const auto id = static_cast<std::size_t>(t);
        current[id] = static_cast<TensorId>(data.tensors.size());
        data.tensors.push_back(graph.tensor(t));
        data.tensors.back().name = instance_name(graph.tensor(t).name, ++written[id]);
        origin.push_back(t);
        return current[id];
    };
    for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
        if (graph.writer(static_cast<TensorId>(t)) < 0) {
            instance(static_cast<TensorId>(t));
        }
    }
    bool backward = false;
    for (const Run& step : runs) {
        Op op = graph.op(step.op);
        const bool skips = step.skip && !op.tape.empty();
        backward |= op.phase == Phase::backward;
        op.phase = backward ? Phase::backward : Phase::forward;
        op.name = instance_name(op.name, ++run[static_cast<std::size_t>(step.op)]);
        for (TensorId& t : op.reads) {
            const TensorId found = current[static_cast<std::size_t>(t)];
            if (found < 0) {
                throw ScheduleError("run " + op.name + " reads '" + graph.tensor(t).name +
                                        "', which no run has written",
                                    static_cast<StepId>(data.ops.size()));
            }
            t = found;
        }
        std::vector<TensorId> writes;
        for (const TensorId t : op.writes) {
            if (!skips || std::find(op.tape.begin(), op.tape.end(), t) == op.tape.end()) {
                writes.push_back(instance(t));
            }
        }
        op.writes = std::move(writes);
        if (skips && op.skip_workspace) {
            for (Choice& choice : op.choices) {
                choice.workspace = *op.skip_workspace;
            }
        }
        op.tape.clear();
        op.skip_workspace.reset();
        data.ops.push_back(std::move(op));
    }
    return {Graph(std::move(data)), {runs.begin(), runs.end()}, std::move(origin)};
}

StepList rolled(const Unrolled& unrolled, StepList list) {
    for (Step& step : list.steps) {
        const auto id = static_cast<std::size_t>(step.id);
        if (step.verb == Verb::run) {
            step.id = unrolled.runs[id].op;
            step.skip = unrolled.runs[id].skip;
        } else {
            step.id = unrolled.tensors[id];
        }
    }
    return list;
}

} // namespace memsched
