// What every order below a limit has in common.
#pragma once

#include "memsched/planners/order_bound.h"
#include "memsched/progress.h"

#include <vector>

namespace memsched {

// A problem with all orders below the limit that the first one has, and more that ops wait for. Op k was ops[k].
struct Deduced {
    OrderProblem problem;
    std::vector<OpId> ops;
    bool impossible = false; // no order is below the limit
};

// For ops that need much, and each op that may run before or after: where one of the two needs `limit` bytes or more,
// by a minimum cut, only the other is left. Goes on while that tells more, each time for so many ops. O(critical x ops)
// minimum cuts a time.
Deduced deduce(const OrderProblem& problem, Bytes limit, std::size_t critical, const Progress& progress);

} // namespace memsched
