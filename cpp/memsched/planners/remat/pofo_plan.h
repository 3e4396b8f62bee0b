// POFO's decisions: the blocks of the forward phase, and the resulting operations.
#pragma once

#include "memsched/planners/remat/remat_chain.h"

#include <cstdint>
#include <vector>

namespace memsched {

// One block of the forward phase: the layers first .. last, saved (`all`, one layer) or run from a checkpoint.
struct PofoBlock {
    int first = 0, last = 0;
    bool all = true;
    bool input_saved = false; // its input is all that layer first - 1 saves, not only its output
    bool offloaded = false;   // its input is offloaded
};

struct PofoPlan {
    std::vector<RematOp> sequence; // forward phase, loss, backward phase
    std::vector<PofoBlock> blocks; // the loss last
    Seconds time = 0;              // in the fluid link model
    std::uint64_t states = 0;      // expanded
};

} // namespace memsched
