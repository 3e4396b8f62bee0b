// Anytime search for the offload set with the least simulated makespan.
#pragma once

#include "memsched/build/set_builder.h"
#include "memsched/model/device.h"

#include <cstdint>
#include <limits>
#include <span>

namespace memsched {

struct OffloadOptions {
    Seconds lower_bound = 0;                                        // stop when this is reached ..
    double gap = 0;                                                 // .. within this ratio
    std::uint64_t seed = 0;                                         // of the walks
    std::uint64_t most = std::numeric_limits<std::uint64_t>::max(); // moves, up to one slice more
};

struct OffloadSolution {
    StepList steps;
    Seconds makespan = 0;
    std::uint64_t evaluations = 0; // sets simulated
};

// starts: initial offload sets, one flag per tensor, rows concatenated. The result is never worse than any of them that
// runs. Throws InfeasibleError if the budget (bytes, resident included) is below min_memory(graph).
OffloadSolution offload_search(const Graph& graph, const Device& device, Bytes budget,
                               std::span<const std::uint8_t> starts, const OffloadOptions& options,
                               const Progress& progress);

} // namespace memsched
