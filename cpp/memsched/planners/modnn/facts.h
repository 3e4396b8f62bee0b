// Data about the graph that moDNN needs repeatedly.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/planners/modnn/segment_list.h"

#include <cstdint>
#include <vector>

namespace memsched {

using Tensors = std::vector<TensorId>;
using Flags = std::vector<std::uint8_t>;

// The state of tensors that decides about room for others: where each is, and whether it has been used.
struct ModnnLayout {
    SegmentList memory;
    Flags here; // by tensor: on the device
    Flags used; // by tensor: used since it was made or last fetched
};

struct ModnnFacts {
    explicit ModnnFacts(const Graph& g);

    Bytes bytes(TensorId t) const { return graph.tensor(t).bytes; }
    Bytes base_workspace(OpId op) const;
    // Feature maps go to the bottom of the memory, gradients and workspaces to the top.
    bool goes_to_top(TensorId owner) const;
    // The first reader after an op; the number of ops if there is none.
    OpId next_use(TensorId t, OpId behind) const;
    // Sorted by size, largest first, stable on ties; without empty tensors.
    Tensors by_size(Tensors tensors) const;

    const Graph& graph;
    std::vector<std::int32_t> base;      // by op: the baseline
    std::vector<Seconds> quickest;       // by op: of any choice
    std::vector<std::vector<OpId>> uses; // by tensor: its readers
    std::vector<Tensors> over;           // by op: tensors that can be freed after it
};

} // namespace memsched
