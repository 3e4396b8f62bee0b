#include "memsched/simulate/residency.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <stdexcept>

namespace memsched {

std::vector<Stay> residency(const Graph& graph, const StepList& list) {
    if (graph.persistent()) {
        throw std::invalid_argument("'" + graph.name() +
                                    "' has persistent tensors, so its plan is repeated without end, " +
                                    "and has no addresses yet; to place one step, give those tensors the role weight");
    }
    const auto steps = static_cast<StepId>(list.steps.size());
    std::vector<Stay> stays;
    std::vector<std::int32_t> current(graph.tensors().size(), -1); // by tensor: its current stay
    Bytes low = 0;
    for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
        const Tensor& tensor = graph.tensors()[t];
        if (tensor.source() && tensor.bytes > 0) {
            current[t] = static_cast<std::int32_t>(stays.size());
            stays.push_back({static_cast<TensorId>(t), 0, steps, tensor.bytes, true,
                             list.contiguous() ? low : StepList::no_address});
            low += tensor.bytes;
        }
    }
    for (StepId k = 0; k < steps; ++k) {
        const Step& step = list.steps[at(k)];
        if (step.verb == Verb::free && current[at(step.id)] >= 0) {
            stays[at(current[at(step.id)])].end = k + 1;
            current[at(step.id)] = -1;
        }
        each_brought(graph, step, [&](TensorId tensor, Bytes bytes, std::size_t place) {
            if (bytes > 0) {
                const Bytes address = list.contiguous() ? list.at[at(k)][place] : StepList::no_address;
                if (tensor >= 0) {
                    current[at(tensor)] = static_cast<std::int32_t>(stays.size());
                }
                stays.push_back({tensor, k, tensor < 0 ? k + 1 : steps, bytes, false, address});
            }
        });
    }
    return stays;
}

StepList with_addresses(const Graph& graph, StepList list, const std::vector<Bytes>& addresses) {
    const std::vector<Stay> stays = residency(graph, list);
    if (addresses.size() != stays.size()) {
        throw std::invalid_argument("there are " + std::to_string(addresses.size()) + " addresses for " +
                                    std::to_string(stays.size()) + " buffers; give one per buffer");
    }
    list.at.assign(list.steps.size(), {});
    auto next = static_cast<std::size_t>(std::ranges::count_if(stays, [](const Stay& stay) { return stay.source; }));
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Step& step = list.steps[k];
        list.at[k].assign(count_brought(graph, step), StepList::no_address);
        each_brought(graph, step, [&](TensorId, Bytes bytes, std::size_t place) {
            if (bytes > 0) {
                list.at[k][place] = addresses[next++];
            }
        });
    }
    return list;
}

} // namespace memsched
