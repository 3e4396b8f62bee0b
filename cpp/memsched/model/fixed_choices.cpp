#include "memsched/model/fixed_choices.h"

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

FixedChoices fix_choices(const Graph& graph, Bytes limit) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), graph.ops()};
    std::vector<std::int32_t> choice;
    for (Op& op : data.ops) {
        choice.push_back(fastest_within(op, limit));
        op.choices = {op.choices[at(choice.back())]};
    }
    return {Graph(std::move(data)), std::move(choice)};
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
