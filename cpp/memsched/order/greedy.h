// Orders by simple rules, combined with runs that lose nothing.
#pragma once

#include "memsched/order/closure.h"

namespace memsched::order {

// Among the ops that fit, the one that ...
enum class Greedy {
    least_change, // grows memory least
    least_need,   // needs the least while it runs
    listed,       // comes first in the problem
    newest,       // became ready last
    random,       // comes first in an order shuffled by the seed
};

// The rules that each order is tried by.
inline constexpr Greedy simple_rules[] = {Greedy::least_change, Greedy::least_need, Greedy::listed, Greedy::newest};

// Runs what loses nothing within the limit, then by the rule an op that fits, else the op that needs least. So the peak
// may exceed the limit. O(ops^2) at worst, for choosing among the ready ops.
std::vector<OpId> greedy_order(const Problem& problem, Bytes limit, Greedy rule, Pace& pace, Effort effort = {},
                               std::uint64_t seed = 0);

// From the op that touches the fewest bytes to the one that touches most, each right after its predecessors.
std::vector<OpId> small_first_order(const Problem& problem, Pace& pace);

} // namespace memsched::order
