// Long chains with neighbouring layers merged, for tables that grow with the square of the layers.
#pragma once

#include "memsched/planners/remat/remat_chain.h"

#include <vector>

namespace memsched {

constexpr int most_table_layers = 400; // limit of a table; longer chains are planned in this many groups

// Groups of neighbouring layers that are saved, run from a checkpoint and run backward together. The need of a group is
// the largest need of its layers, so a plan of the groups, carried out layer by layer, fits its memory and takes its
// time. Plans that treat the layers of a group differently are lost.
struct MergedChain {
    // At most `most` >= 2 layers, with the loss on its own; the same chain if it has no more. Groups have similar
    // numbers of bytes and layers, and end where little crosses.
    MergedChain(const RematChain& source, int most);

    std::vector<int> ends; // last layer of the source in each group, 0 for the input
    RematChain chain;      // of the groups

    std::vector<RematOp> layers(const std::vector<RematOp>& sequence) const; // a plan of the groups, layer by layer
};

} // namespace memsched
