// Orders by simple rules, which know what loses nothing.
#pragma once

#include "memsched/order/closure.h"

namespace memsched::order {

// Among the ops that fit, the one that ...
enum class Greedy {
    least_change, // grows memory least
    least_need,   // needs the least while it runs
    listed,       // comes first in the problem
    newest,       // became ready last
    random,       // comes first in an order that the seed shuffles
};

// Runs what loses nothing within the limit, then by the rule what fits, else what needs the least. So the peak may
// exceed the limit. O(ops^2) at worst, for the choice among ops that are ready.
std::vector<OpId> greedy_order(const Problem& problem, Bytes limit, Greedy rule, Pace& pace, Effort effort = {},
                               std::uint64_t seed = 0);

// From the op that touches the fewest bytes to the one that touches the most, each right after all that it needs.
std::vector<OpId> small_first_order(const Problem& problem, Pace& pace);

} // namespace memsched::order
