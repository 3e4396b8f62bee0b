// When the plain run needs each tensor: each op runs once in graph order, nothing is moved, and everything is freed
// after its last use. Planners and bounds start from here.
#pragma once

#include "memsched/model/graph.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace memsched {

// One entry per tensor unless stated otherwise; ops are indices in graph order, -1 for "before the first" or "none".
struct Lifetimes {
    explicit Lifetimes(const Graph& graph);

    OpId turn;                        // the first op of phase backward; the number of ops if there is none
    std::vector<OpId> birth;          // its writer; -1: input or weight
    std::vector<OpId> last_forward;   // last forward op that writes or reads it; -1: none
    std::vector<OpId> first_backward; // first backward op that reads it; -1: none
    std::vector<OpId> last_use;       // it is freed after this op; -1: never (no reader: a result of the step)
    std::vector<std::uint8_t> empty;  // without bytes: never worth offloading
    std::vector<Bytes> usage;         // per op: bytes held while it runs, its workspace included, resident excluded
    std::vector<Bytes> need;          // per op: its reads, and the writes and workspace of its least run; 0 if it may
                                      // run on the host
    Bytes least = 0;                  // of any plan: the largest need, or the bytes of inputs and weights

    // The first op before which a tensor that is offloaded after its last forward use may be away.
    OpId away_from(std::size_t tensor) const { return std::max(last_forward[tensor], 0) + 1; }

    // Whether a tensor may be offloaded and fetched: it has bytes, is written by a forward op or by none, and is read
    // by a backward op, after all forward ones. These are the feature maps, inputs and weights.
    bool movable(std::size_t tensor) const {
        return !empty[tensor] && first_backward[tensor] >= away_from(tensor) &&
               (birth[tensor] < 0 || last_forward[tensor] >= 0);
    }
};

// The feature maps: activations with bytes that are written before the turn and read at the turn or later, in the order
// in which they are written.
std::vector<TensorId> feature_maps(const Graph& graph, const Lifetimes& lifetimes);

// The least memory of any plan, resident included: the larger of the largest need of an op (eq. 2 of moDNN) and the
// bytes of inputs and weights, on the device at time 0. Exact if tensors can be offloaded and the host is large enough,
// since between runs all of them may be away.
Bytes min_memory(const Graph& graph);

// Memory of the plain run, resident included. With persistent tensors, all sources stay all the time.
Bytes peak_memory(const Graph& graph);

} // namespace memsched
