#include "memsched/model/fixed_choices.h"

#include "memsched/support/mix.h"

#include <algorithm>

namespace memsched {

namespace {

template <class Choose> FixedChoices fixed(const Graph& graph, const Choose& choose) {
    std::vector<std::int32_t> choice;
    for (const Op& op : graph.ops()) {
        choice.push_back(choose(op));
    }
    return {graph.with_choices(choice), std::move(choice)};
}

// The choices with which an op can run alone, without a tape that nobody reads if that takes less; if there is none,
// the one with the least workspace.
std::vector<std::int32_t> fitting(const Graph& graph, const Op& op, Bytes capacity) {
    const bool unread = !op.tape.empty() && std::ranges::none_of(op.tape, [&](TensorId t) { return graph.read(t); });
    const Bytes room = capacity - bytes_of(graph, op.reads);
    std::vector<std::int32_t> fit;
    for (std::int32_t k = 0; k < static_cast<std::int32_t>(op.choices.size()); ++k) {
        if (run_bytes(graph, op, false, k) <= room || (unread && run_bytes(graph, op, true, k) <= room)) {
            fit.push_back(k);
        }
    }
    return fit.empty() ? std::vector{baseline(op)} : fit;
}

} // namespace

FixedChoices fix_choices(const Graph& graph, Bytes limit) {
    return fixed(graph, [&](const Op& op) { return fastest_within(op, false, limit); });
}

FixedChoices fit_choices(const Graph& graph, Bytes capacity) {
    return fixed(graph, [&](const Op& op) {
        const std::vector<std::int32_t> fit = fitting(graph, op, capacity);
        return *std::ranges::min_element(fit, {}, [&](std::int32_t k) {
            const Choice& one = op.choices[at(k)];
            return std::pair(one.time, one.workspace);
        });
    });
}

FixedChoices random_choices(const Graph& graph, Bytes capacity, std::uint64_t seed) {
    return fixed(graph, [&](const Op& op) {
        const std::vector<std::int32_t> fit = fitting(graph, op, capacity);
        seed = mix(seed);
        return fit[seed % fit.size()];
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
