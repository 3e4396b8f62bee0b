// Long chains with neighbouring layers taken as one, for tables that grow with the square of the layers.
#pragma once

#include "memsched/planners/remat/pofo_plan.h"

#include <vector>

namespace memsched {

constexpr int most_table_layers = 400; // what a table is made for; longer chains are planned in so many groups

// Groups of neighbouring layers that are saved, run from a checkpoint and run backward together. What a group needs is
// the most that any of its layers needs meanwhile, so a plan of the groups, layer by layer, fits the memory that it was
// made for and takes the time that it was given; plans that treat the layers of a group differently are lost.
struct MergedChain {
    // At most `most` >= 2 layers, the loss alone; the same chain where it has no more. Groups hold about as many bytes
    // and layers as each other, and end where little crosses.
    MergedChain(const RematChain& source, int most);

    std::vector<int> ends; // last layer of the source in each group, 0 for the input
    RematChain chain;      // of the groups

    std::vector<RematOp> layers(const std::vector<RematOp>& sequence) const; // a plan of the groups, layer by layer
};

} // namespace memsched
