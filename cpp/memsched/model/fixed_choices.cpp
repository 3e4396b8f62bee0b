#include "memsched/model/fixed_choices.h"

#include <algorithm>

namespace memsched {

std::int32_t fastest_within(const Op& op, Bytes limit) {
    std::int32_t best = 0;
    for (std::size_t k = 1; k < op.choices.size(); ++k) {
        const Choice &one = op.choices[k], &other = op.choices[at(best)];
        if (one.workspace <= limit && (one.time < other.time || other.workspace > limit)) {
            best = static_cast<std::int32_t>(k);
        }
    }
    return best;
}

namespace {

template <class Choose> FixedChoices fixed(const Graph& graph, const Choose& choose) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), graph.ops()};
    std::vector<std::int32_t> choice;
    for (Op& op : data.ops) {
        choice.push_back(choose(op));
        op.choices = {op.choices[static_cast<std::size_t>(choice.back())]};
    }
    return {Graph(std::move(data)), std::move(choice)};
}

} // namespace

FixedChoices fix_choices(const Graph& graph, Bytes limit) {
    return fixed(graph, [&](const Op& op) { return fastest_within(op, limit); });
}

FixedChoices fit_choices(const Graph& graph, Bytes capacity) {
    return fixed(graph, [&](const Op& op) {
        Bytes touched = written_bytes(graph, op);
        for (const TensorId t : op.reads) {
            touched += graph.tensor(t).bytes;
        }
        const std::int32_t least = baseline(op);
        const Bytes room = std::max(capacity - touched, op.choices[static_cast<std::size_t>(least)].workspace);
        std::int32_t best = least;
        for (std::int32_t k = 0; k < static_cast<std::int32_t>(op.choices.size()); ++k) {
            const Choice& one = op.choices[static_cast<std::size_t>(k)];
            if (one.workspace <= room && one.time < op.choices[static_cast<std::size_t>(best)].time) {
                best = k;
            }
        }
        return best;
    });
}

StepList FixedChoices::on_original(StepList list) const {
    for (Step& step : list.steps) {
        if (step.verb == Verb::run) {
            step.choice = choice[at(step.id)];
        }
    }
    return list;
}

} // namespace memsched
