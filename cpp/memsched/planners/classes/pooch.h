// PoocH (Ito et al., 2019): classes for feature maps by searching, with every candidate built and simulated.
#pragma once

#include "memsched/model/device.h"
#include "memsched/planners/classes/class_search.h"
#include "memsched/support/parallel.h"
#include "memsched/support/progress.h"

#include <cstdint>
#include <optional>

namespace memsched {

struct PoochOptions {
    int tree = 12;     // up to so many maps whose fetches stall are searched exhaustively,
    int beam = 4;      // more of them with so many states a level
    bool fill = false; // afterwards keep what still fits
};

struct PoochSolution {
    ClassSolution swap_opt, pooch;
    std::int64_t evaluations = 0;
};

// Keep and swap only (its first step), and all of PoocH if `recompute`; else `pooch` is swap_opt. Where everything fits
// nothing moves. budget: bytes, resident included. Where swapping all does not run (no link, a small host), it starts
// from a mixture of the classes instead; none when no such mixture runs. Stops early when told to.
std::optional<PoochSolution> pooch(const Graph& graph, const Device& device, Bytes budget, bool recompute,
                                   const PoochOptions& options, Workers& workers, const Progress& progress);

// Beyond the paper: changes the classes of one to three maps at random, by late acceptance on the makespan, until told
// to stop, and returns the best. `evaluations` counts on.
ClassSolution improve_classes(const Graph& graph, const Device& device, Bytes budget, ClassSolution start,
                              std::uint64_t seed, std::int64_t& evaluations, const Progress& progress);

} // namespace memsched
