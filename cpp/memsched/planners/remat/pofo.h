// POFO (NeurIPS 2021): which blocks of a chain are saved or recomputed, and which of their inputs are offloaded.
#pragma once

#include "memsched/planners/remat/linked_segments.h"

#include <optional>

namespace memsched {

struct PofoOptions {
    Bytes capacity = 0;         // resident excluded; at most the table's
    Bandwidth d2h = 0, h2d = 0; // bytes per second; 0: nothing is offloaded, infinity: for free
    std::optional<Bytes> host;  // most bytes that are offloaded
    bool exact = false;         // round everything up to slots and search all states, otherwise `beam`
    int beam = 100;             // states kept per layer and kind of input, with real sizes (not exact)

    bool linked() const { return d2h > 0 && h2d > 0; }
};

// The best plan found, never worse than rotor's; with options.exact and no limit on the host the optimum of the
// recurrences in slots. None if no plan fits. It does not depend on the number of threads. When progress says stop, the
// best plan so far.
std::optional<RematSolution> pofo(const SegmentTable& table, const PofoOptions& options, Workers& workers,
                                  const Progress& progress);

} // namespace memsched
