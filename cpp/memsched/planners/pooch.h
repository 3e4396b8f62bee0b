// PoocH (Ito et al., 2019): classes for feature maps by searching, with every candidate built and simulated.
#pragma once

#include "memsched/class_plans.h"
#include "memsched/device.h"
#include "memsched/parallel.h"
#include "memsched/progress.h"

#include <cstdint>
#include <vector>

namespace memsched {

// Classes of all maps, where their fetches stand, and what the simulator says.
struct ClassSolution {
    std::vector<MapClass> classes;
    FetchRule rule;
    Seconds makespan = 0;
};

struct PoochOptions {
    int tree = 10;     // up to so many maps whose fetches stall are searched exhaustively,
    int beam = 4;      // more of them with so many states a level
    bool fill = false; // afterwards keep what still fits
};

struct PoochSolution {
    ClassSolution swap_all, swap_opt, pooch;
    std::int64_t evaluations = 0;
};

// The better of eager fetches and fetches one layer ahead. Throws InfeasibleError when swapping all does not fit.
ClassSolution swap_all(const Graph& graph, const Device& device, Bytes budget);

// Keep and swap only (its first step), and all of PoocH if `recompute`; else `pooch` is swap_opt. budget: bytes,
// resident included. Throws InfeasibleError when swapping all does not fit. Stops early when told to.
PoochSolution pooch(const Graph& graph, const Device& device, Bytes budget, bool recompute, const PoochOptions& options,
                    Workers& workers, const Progress& progress);

// The least budget at which a plan for such classes exists (their fetches on demand); all must be keep or swap.
Bytes least_budget(const Graph& graph, const std::vector<MapClass>& classes);

} // namespace memsched
