// One algorithm per op, fixed before planning, as in frameworks that give a library a limited workspace.
#pragma once

#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// A graph whose ops have one choice each, with the index of that choice in the original.
struct FixedChoices {
    Graph graph;
    std::vector<std::int32_t> choice; // by op

    // Translates a list of steps for `graph` to the original.
    StepList on_original(StepList list) const;
};

// Fixes the fastest choice of each op within the limit.
FixedChoices fix_choices(const Graph& graph, Bytes limit);

// Fixes the fastest choice of each op that can run alone in `capacity` bytes (resident excluded), by its reads, writes
// and workspace; of those that cannot, and with 0, the choice with the least workspace.
FixedChoices fit_choices(const Graph& graph, Bytes capacity);

// Fixes, of each op, any choice with which it can run alone in `capacity` bytes, at random; of those that cannot, the
// choice with the least workspace. Same seed, same choices.
FixedChoices random_choices(const Graph& graph, Bytes capacity, std::uint64_t seed);

} // namespace memsched
