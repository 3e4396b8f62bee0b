#include "memsched/simulate/order_steps.h"

namespace memsched {

StepList order_steps(const Graph& graph, const std::vector<OpId>& order, const std::vector<std::uint8_t>& keep,
                     Bytes limit) {
    std::vector<std::int32_t> left(graph.tensors().size(), 0); // remaining readers
    Bytes held = graph.resident();
    for (const Op& op : graph.ops()) {
        for (const TensorId t : op.reads) {
            ++left[at(t)];
        }
    }
    const auto stays = [&](TensorId t) { // a list that is repeated ends as it began
        return keep[at(t)] != 0 || graph.tensor(t).role == Role::weight ||
               (graph.persistent() && graph.tensor(t).source());
    };
    StepList list;
    const auto free = [&](TensorId t) {
        list.free(t);
        held -= graph.tensor(t).bytes;
    };
    for (std::size_t t = 0; t < left.size(); ++t) {
        const auto id = static_cast<TensorId>(t);
        if (graph.writer(id) < 0) {
            held += graph.tensor(id).bytes;
            if (left[t] == 0 && !stays(id)) {
                free(id);
            }
        }
    }
    for (const OpId id : order) {
        const Op& op = graph.op(id);
        const bool skip = least_run(graph, op, keep).skip;
        held += written_bytes(graph, op) - (skip ? bytes_of(graph, op.tape) : 0);
        const Step run{Verb::run, skip, id, fastest_within(op, skip, limit - held)};
        list.steps.push_back(run);
        for (const TensorId t : op.writes) {
            if (!skips(graph, run, t) && left[at(t)] == 0 && !stays(t)) {
                free(t);
            }
        }
        for (const TensorId t : op.reads) {
            if (--left[at(t)] == 0 && !stays(t)) {
                free(t);
            }
        }
    }
    return list;
}

} // namespace memsched
