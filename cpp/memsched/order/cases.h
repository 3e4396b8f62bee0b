// Decides whether there is an order within a limit, case by case.
#pragma once

#include "memsched/order/problem.h"

#include <vector>

namespace memsched::order {

struct Settled {
    std::vector<OpId> order; // within the limit; empty if none was found
    bool impossible = false; // whether it is proven that there is none
};

// Deduces what all such orders have in common, tries some, and otherwise branches on two ops that may run in either
// order: both cases are problems of the same kind. Gives up after `cases` of them.
// critical: the number of ops, those that need most, to deduce from. room: as in `deduce`.
Settled settle(const Problem& problem, Bytes limit, std::size_t critical, std::size_t cases, std::size_t room,
               Pace& pace);

} // namespace memsched::order
