// Offsets in one arena for buffers with known lifetimes, so that the arena is as low as possible.
#pragma once

#include "memsched/placement/buffers.h"
#include "memsched/support/progress.h"

#include <optional>
#include <span>
#include <vector>

namespace memsched::placement {

struct Options {
    std::optional<Bytes> capacity; // any placement within it is accepted
    bool search = true;            // otherwise only the rules of thumb
};

struct Placed {
    std::vector<Bytes> offsets; // by buffer
    Bytes height = 0;
    Bytes lower_bound = 0; // proven; more than the capacity if nothing fits
};

// Checks the buffers (see check_buffers) and places them. Stretches of time that no buffer links are placed separately:
// by a portfolio of rules of thumb, then by an exact search at and above the lower bound, alternating with a large
// neighbourhood search. Ends with a proof, with a placement within the capacity, or when told to stop; then it returns
// the best placement, which is never worse than the first rule's.
Placed place(std::span<const Buffer> buffers, const Options& options, const Progress& progress);

} // namespace memsched::placement
