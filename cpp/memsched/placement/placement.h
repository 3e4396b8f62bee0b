// Offsets in one arena for buffers with known lifetimes, so that the arena is as low as can be.
#pragma once

#include "memsched/placement/buffers.h"
#include "memsched/support/progress.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace memsched::placement {

struct Options {
    std::optional<Bytes> capacity; // any placement up to it will do
    bool search = true;            // else the rules of thumb alone
};

struct Placed {
    std::vector<Bytes> offsets; // by buffer
    Bytes height = 0;
    Bytes lower_bound = 0;  // proven; more than the capacity where nothing fits it
    std::int64_t nodes = 0; // of the exact search
};

// Checks the buffers (see check_buffers) and places them. Stretches of time that no buffer links are placed apart: by a
// portfolio of rules of thumb, then by an exact search at the lower bound and above it, in turns with a large
// neighbourhood search. Ends with a proof, with a placement within the capacity, or when told to stop; then it returns
// the best placement, which is never worse than the portfolio's first.
Placed place(std::span<const Buffer> buffers, const Options& options, const Progress& progress);

} // namespace memsched::placement
