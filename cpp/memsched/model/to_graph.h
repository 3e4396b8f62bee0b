// The graph on which all plans of a chain are simulated and checked.
#pragma once

#include "memsched/model/chain.h"
#include "memsched/model/graph.h"

namespace memsched {

// How tensors are cut for transfers.
struct Chunk {
    enum class Kind { whole, bytes, storage };
    Kind kind = Kind::whole;
    Bytes bytes = 0; // the largest piece, when kind is bytes; >= 1

    bool operator==(const Chunk&) const = default;
};

// Ops F1 .. Fn, loss, Bn .. B1. F_k reads a^{k-1} and writes a^k and tape^k = saved - activation; B_k reads a^{k-1},
// a^k, tape^k, d^k and writes d^{k-1}. Empty activations and tapes are left out. Chunks cut the tensors of role input
// and activation into name/0, name/1, ..; Kind::storage cuts tape^k as the chain's pieces say. Throws
// std::invalid_argument for a chunk < 1 byte, for storages of a chain without pieces, and for more than 100,000 pieces.
Graph to_graph(const Chain& chain, const Chunk& chunk = {});

} // namespace memsched
