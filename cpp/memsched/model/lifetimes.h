// When the plain run needs each tensor: ops once each in graph order, nothing moved, everything freed after its last
// use. Planners and bounds reason from here.
#pragma once

#include "memsched/model/graph.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace memsched {

// One entry a tensor unless said otherwise; ops are indices in graph order, -1 for "before the first" or "none".
struct Lifetimes {
    explicit Lifetimes(const Graph& graph);

    OpId turn;                        // the first op of phase backward; as many as there are ops: none
    std::vector<OpId> birth;          // its writer; -1: input or weight
    std::vector<OpId> last_forward;   // last forward op that writes or reads it; -1: none
    std::vector<OpId> first_backward; // first backward op that reads it; -1: none
    std::vector<OpId> last_use;       // it is freed after this op; -1: never (no reader: a result of the step)
    std::vector<std::uint8_t> empty;  // of no bytes: it has no reason to leave
    std::vector<Bytes> usage;         // per op: bytes held while it runs, its workspace included, resident excluded
    std::vector<Bytes> need;          // per op: its reads and what its least run writes and works in
    Bytes least = 0;                  // of any plan: the largest need, or what lies on the device at time 0

    // The first op before which a tensor that leaves after its last forward use may be away.
    OpId away_from(std::size_t tensor) const { return std::max(last_forward[tensor], 0) + 1; }

    // Whether a tensor may leave and come back: it has bytes, is written by a forward op, or by none, and read by a
    // backward op, after all forward ones. Feature maps are such tensors, and so are inputs and weights.
    bool movable(std::size_t tensor) const {
        return !empty[tensor] && first_backward[tensor] >= away_from(tensor) &&
               (birth[tensor] < 0 || last_forward[tensor] >= 0);
    }
};

// The feature maps: activations that an op before the turn writes, and the turn or an op behind it reads, in the order
// in which they are written.
std::vector<TensorId> feature_maps(const Graph& graph, const Lifetimes& lifetimes);

// The least memory of any plan, resident included: the largest of what the ops need (eq. 2 of moDNN) and of what lies
// on the device at time 0. Exact where tensors can travel and the host takes them: between runs all of them may be
// away.
Bytes min_memory(const Graph& graph);

// Memory of the plain run, resident included.
Bytes peak_memory(const Graph& graph);

} // namespace memsched
