// PoocH (Ito et al., 2019): a search over classes of feature maps; every candidate is built and simulated.
#pragma once

#include "memsched/planners/classes/class_search.h"

#include <cstdint>
#include <optional>

namespace memsched {

struct PoochOptions {
    int tree = 12;     // up to this many maps whose fetches stall are searched exhaustively,
    int beam = 4;      // with more, this many states are kept per level
    bool fill = false; // finally keep what still fits
};

struct PoochSolution {
    ClassSolution best;
    std::int64_t evaluations = 0;
};

// Keep and swap only (the first step), and all of PoocH if `recompute`. If everything fits nothing moves. If swapping
// all maps does not run (no link, a small host), it starts from a mixture of classes; none if no such mixture runs.
// Stops early when told to.
std::optional<PoochSolution> pooch(const Graph& graph, const Device& device, bool recompute,
                                   const PoochOptions& options, Workers& workers, const Progress& progress);

} // namespace memsched
