// The largest cycle ratio of a graph whose arcs have a weight and a number of borders: the largest, over all cycles, of
// the sum of weights over the sum of borders.
#pragma once

#include "memsched/support/progress.h"
#include "memsched/support/rows.h"
#include "memsched/support/units.h"

#include <cstdint>
#include <vector>

namespace memsched {

struct Arc {
    std::int32_t from = 0;
    Seconds weight = 0;
    std::int32_t borders = 0; // >= 0; on every cycle there is one
};

struct CycleRatio {
    Seconds ratio = 0;
    std::vector<Seconds> longest; // by node: of the paths from a node of that cycle, each border taking off the ratio
};

// into: the arcs into each node; all nodes can be reached from each other. (node, ratio): one cycle, which the search
// starts from. Sums that differ by no more than least_gain count as equal. Fastest if few arcs come from later nodes.
CycleRatio largest_ratio(const Rows<Arc>& into, std::int32_t node, Seconds ratio, Seconds least_gain, Pace& pace);

} // namespace memsched
