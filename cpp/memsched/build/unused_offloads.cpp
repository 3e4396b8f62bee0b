#include "memsched/build/unused_offloads.h"

#include "memsched/support/units.h"

#include <cstdint>
#include <vector>

namespace memsched {

void drop_unused_offloads(const Graph& graph, StepList& list) {
    std::vector<std::uint8_t> stays(graph.tensors().size());
    for (std::size_t t = 0; t < stays.size(); ++t) {
        stays[t] = !graph.read(static_cast<TensorId>(t));
    }
    for (const Step& step : list.steps) {
        if (step.verb == Verb::prefetch) {
            stays[at(step.id)] = 1;
        }
    }
    std::vector<StepId> moved(list.steps.size(), -1); // the new index of each step
    StepId count = 0;
    for (std::size_t k = 0; k < moved.size(); ++k) {
        const Step& step = list.steps[k];
        if (step.verb != Verb::offload || stays[at(step.id)]) {
            moved[k] = count;
            list.steps[at(count++)] = step;
        }
    }
    list.steps.resize(at(count));
    for (std::vector<StepId>& earlier : list.after) {
        std::erase_if(earlier, [&](StepId step) { return moved[at(step)] < 0; });
        for (StepId& step : earlier) {
            step = moved[at(step)];
        }
    }
}

} // namespace memsched
