#include "memsched/bounds/steady_bound.h"

#include "memsched/model/lifetimes.h"

#include <algorithm>

namespace memsched {
namespace {

struct Travellers {
    Bytes all = 0;     // bytes that must be on the device in each repetition
    Bytes changed = 0; // and of these, what can leave it only by an offload in each
};

// Of each tensor: a persistent one travels if some op reads it, other sources as they are there at the border.
std::vector<Travellers> travellers(const Graph& graph) {
    std::vector<Travellers> found(graph.tensors().size());
    for (std::size_t t = 0; t < found.size(); ++t) {
        const Tensor& tensor = graph.tensors()[t];
        if (tensor.source() && (!tensor.persistent() || graph.read(static_cast<TensorId>(t)))) {
            found[t].all = tensor.bytes;
            found[t].changed = tensor.persistent() ? 0 : tensor.bytes;
        }
    }
    for (const Op& op : graph.ops()) {
        for (const TensorId t : op.updates) {
            found[at(t)].changed = graph.tensor(t).bytes;
        }
    }
    return found;
}

Seconds seconds_of(Bytes bytes, Bandwidth bandwidth) {
    return bytes <= 0 ? 0 : bandwidth == 0 ? never : static_cast<double>(bytes) / bandwidth;
}

} // namespace

Bounds steady_bounds(const Graph& graph, const Device& device, Bytes budget) {
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    const Lifetimes lifetimes(graph);
    const std::vector<Travellers> each = travellers(graph);
    Travellers sum;
    for (const Travellers& one : each) {
        sum.all += one.all;
        sum.changed += one.changed;
    }
    Bounds bounds;
    for (std::size_t k = 0; k < graph.ops().size(); ++k) {
        const Op& op = graph.ops()[k];
        Travellers beside = sum;
        for (const TensorId t : op.reads) {
            beside.all -= each[at(t)].all;
            beside.changed -= each[at(t)].changed;
        }
        bounds.compute += fastest(op).time;
        const Bytes away = lifetimes.need[k] + beside.all - capacity;
        const Seconds in = seconds_of(away, device.h2d);
        const Seconds out = seconds_of(away - (beside.all - beside.changed), device.d2h);
        bounds.transfer = std::max(bounds.transfer, device.duplex ? std::max(in, out) : in + out);
    }
    bounds.fractional = lifetimes.least > capacity ? never : std::max(bounds.compute, bounds.transfer);
    return bounds;
}

} // namespace memsched
