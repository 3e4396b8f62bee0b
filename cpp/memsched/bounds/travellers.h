// What of a repeated list must be on the device in each repetition, and so must travel in each if it ever leaves.
#pragma once

#include "memsched/model/graph.h"

#include <vector>

namespace memsched {

inline bool on_device(const Op& op) { return !op.host_time; } // in any case

struct Traveller {
    Bytes all = 0;     // bytes that must be on the device in each repetition
    Bytes changed = 0; // and of these, what can leave it only by an offload in each

    Traveller& operator+=(const Traveller& other) {
        all += other.all;
        changed += other.changed;
        return *this;
    }
    Traveller& operator-=(const Traveller& other) {
        all -= other.all;
        changed -= other.changed;
        return *this;
    }
};

// By tensor. A persistent one travels if some op reads it on the device, other sources as they are there at the border.
// Zero without persistent tensors, as then nothing is repeated.
inline std::vector<Traveller> travellers(const Graph& graph) {
    std::vector<Traveller> found(graph.tensors().size());
    if (!graph.persistent()) {
        return found;
    }
    for (std::size_t t = 0; t < found.size(); ++t) {
        const Tensor& tensor = graph.tensors()[t];
        if (tensor.source() && !tensor.persistent()) {
            found[t] = {tensor.bytes, tensor.bytes};
        }
    }
    for (const Op& op : graph.ops()) {
        for (const TensorId t : on_device(op) ? op.reads : std::vector<TensorId>{}) {
            if (graph.tensor(t).persistent()) {
                found[at(t)].all = graph.tensor(t).bytes;
            }
        }
    }
    for (const Op& op : graph.ops()) {
        for (const TensorId t : on_device(op) ? op.updates : std::vector<TensorId>{}) {
            found[at(t)].changed = graph.tensor(t).bytes;
        }
    }
    return found;
}

} // namespace memsched
