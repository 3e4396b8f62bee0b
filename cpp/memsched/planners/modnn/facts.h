// What moDNN's walk asks of its graph again and again.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/planners/modnn/segment_list.h"

#include <cstdint>
#include <vector>

namespace memsched {

using Tensors = std::vector<TensorId>;
using Flags = std::vector<std::uint8_t>;

// What a tensor's place in memory depends on: where it is, and whether it has served.
struct ModnnLayout {
    SegmentList memory;
    Flags here; // by tensor, as the next
    Flags used; // since it was made or last fetched
};

struct ModnnFacts {
    explicit ModnnFacts(const Graph& g);

    Bytes bytes(TensorId t) const { return graph.tensor(t).bytes; }
    Bytes base_workspace(OpId op) const;
    // Feature maps go to the bottom of the memory, gradients and workspaces to the top.
    bool goes_to_top(TensorId owner) const;
    // The first reader behind an op; as many as there are ops where there is none.
    OpId next_use(TensorId t, OpId behind) const;
    // Largest first, in the given order where equal; without those of no bytes.
    Tensors by_size(Tensors tensors) const;

    const Graph& graph;
    std::vector<std::int32_t> base;      // by op: the baseline
    std::vector<Seconds> quickest;       // by op: of any choice
    std::vector<std::vector<OpId>> uses; // by tensor: its readers
    std::vector<Tensors> over; // by op: what may go for good after it, with its last reader, or an input of none
};

} // namespace memsched
