// One algorithm for each op, decided before anything is planned, as frameworks do that give a library a workspace.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

#include <vector>

namespace memsched {

// The fastest choice whose workspace is at most `limit` bytes, the first of equals; else the first of all.
std::int32_t fastest_within(const Op& op, Bytes limit);

// A graph whose ops have one choice each, and which choice of the original that is.
struct FixedChoices {
    Graph graph;
    std::vector<std::int32_t> choice; // by op

    // A list of steps for `graph` as one for the original.
    StepList on_original(StepList list) const;
};

// Of each op the fastest choice within the limit.
FixedChoices fix_choices(const Graph& graph, Bytes limit);

} // namespace memsched
