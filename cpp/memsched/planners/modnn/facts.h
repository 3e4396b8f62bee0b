// Data about the graph that moDNN needs repeatedly.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/planners/modnn/segment_list.h"
#include "memsched/support/id_lists.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace memsched {

using Tensors = std::vector<TensorId>;
using Flags = std::vector<std::uint8_t>;

// Adjacent segments that are free or may be cleared.
struct Window {
    Bytes low = 0, high = 0;
    Bytes held = 0;  // by its tensors
    Tensors tensors; // by address
};

// The state of tensors that decides about room for others: where each is, and whether it has been used.
struct ModnnLayout {
    SegmentList memory;
    Flags here; // by tensor: on the device
    Flags used; // by tensor: used since it was made or last fetched

    // Visits the shortest window with enough bytes from each start, if there is one, in the order of the starts.
    // Tensors that are flagged in `protects` or not yet used stay.
    template <class Visit> void each_window(Bytes bytes, const Flags& protects, const Visit& visit) const {
        const std::vector<Segment>& segments = memory.segments();
        for (auto first = segments.begin(); first != segments.end(); ++first) {
            Window window{first->low, first->low, 0, {}};
            for (auto last = first; last != segments.end() && window.high - window.low < bytes; ++last) {
                if (const TensorId t = last->owner; t != Segment::free) {
                    if (t < 0 || protects[at(t)] || !used[at(t)]) {
                        break;
                    }
                    window.tensors.push_back(t);
                    window.held += last->bytes();
                }
                window.high = last->high;
            }
            if (window.high - window.low >= bytes) {
                visit(std::move(window));
            }
        }
    }

    void arrive(TensorId t) {
        here[at(t)] = 1;
        used[at(t)] = 0;
    }
    void remove(TensorId t) {
        memory.remove(t);
        here[at(t)] = 0;
    }
};

struct ModnnFacts {
    explicit ModnnFacts(const Graph& g);

    Bytes bytes(TensorId t) const { return graph.tensor(t).bytes; }
    Bytes base_workspace(OpId op) const;
    // Feature maps go to the bottom of the memory, gradients and workspaces to the top.
    bool goes_to_top(TensorId owner) const;
    // The first reader after an op; the number of ops if there is none.
    OpId next_use(TensorId t, OpId behind) const;
    // By tensor: read by an op of first .. last, or written by the first.
    Flags touched(OpId first, OpId last) const;
    // Sorted by size, largest first, stable on ties; without empty tensors.
    Tensors by_size(Tensors tensors) const;

    const Graph& graph;
    IdLists uses;                   // by tensor: its readers
    std::vector<std::int32_t> base; // by op: the baseline
    std::vector<Seconds> quickest;  // by op: of any choice
    std::vector<Tensors> over;      // by op: tensors that can be freed after it
};

} // namespace memsched
