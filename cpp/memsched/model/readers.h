// The ops that read each tensor.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/id_lists.h"

namespace memsched {

// By tensor: its readers from op `first` on, in the order of the graph.
inline IdLists readers_of(const Graph& graph, OpId first = 0) {
    return IdLists(graph.tensors().size(), [&](const auto& put) {
        for (OpId op = first; at(op) < graph.ops().size(); ++op) {
            for (const TensorId t : graph.op(op).reads) {
                put(at(t), op);
            }
        }
    });
}

} // namespace memsched
