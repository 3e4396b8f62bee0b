// DYNPROG (Euro-Par 2020, section 5): the offload set with the least makespan in the interruptible model, among
// schedules in which no prefetch starts before the last offload has ended.
#pragma once

#include "memsched/planners/offload/fluid_chain.h"
#include "memsched/support/progress.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace memsched {

struct DynprogOptions {
    double gap = 0;                      // stop when (makespan - lower_bound) / lower_bound is proven this small
    std::size_t max_states = 40'000'000; // kept for backtracking, 4 bytes each; a 32nd as many, of about 150 bytes, may
                                         // be in work at once. The default is bounded by about 0.4 GB.
};

struct DynprogSolution {
    std::vector<std::uint8_t> offloaded; // one flag a stage: x_i travels
    double makespan = 0;                 // link bytes
    double lower_bound = 0;              // on every offload set of the class
    bool optimal = false;                // makespan == lower_bound up to rounding
    std::size_t states = 0;              // states generated, all passes together
};

// The dynamic program with dominance and bounds, in passes of growing width; the first pass that drops no state without
// proof is exact. Throws InfeasibleError when no set fits (min_memory is the capacity, rounded up).
DynprogSolution dynprog(const FluidChain& chain, const DynprogOptions& options, const Progress& progress);

// Algorithm 1 of the paper, corrected: hash tables and nothing else. The reference for tests and benchmarks. Throws
// std::length_error when the tables outgrow max_states.
DynprogSolution dynprog_hash(const FluidChain& chain, const DynprogOptions& options, const Progress& progress);

// Both: the error of a chain that does not fit, and the way back from a state of the last stage.
[[noreturn]] void refuse_capacity(const FluidChain& chain);
using StateOrigins = std::vector<std::vector<std::uint32_t>>; // by stage and state: parent << 1 | offloaded
std::vector<std::uint8_t> offloaded_on_way(const StateOrigins& origins, std::size_t winner);

} // namespace memsched
