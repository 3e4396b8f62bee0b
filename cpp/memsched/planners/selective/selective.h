// Selective offloading and recomputation: each gap between two uses of a tensor is kept, swapped or recomputed. The
// cuts of the lower bound tell what is cheapest to run again; a walk on the simulated makespan does the rest.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/schedule.h"
#include "memsched/support/progress.h"

#include <cstdint>
#include <optional>

namespace memsched {

struct SelectiveSolution {
    StepList steps;
    std::int64_t evaluations = 0; // plans that were built
};

// moves: changes that the walk tries. reorder: first runs may come in another order
// than the listed one, and the list of runs is annealed. None if no plan was found. Stops early, with the best so far,
// when told to; throws Stopped if there is none yet.
std::optional<SelectiveSolution> selective(const Graph& graph, const Device& device, std::int64_t moves,
                                           std::uint64_t seed, bool reorder, const Progress& progress);

// A legal plan of a graph, one choice for each op, after its list of runs is annealed; itself if nothing is better.
// Stops early when told to.
SelectiveSolution annealed(const Graph& graph, const Device& device, const StepList& plan, std::int64_t moves,
                           std::uint64_t seed, const Progress& progress);

} // namespace memsched
