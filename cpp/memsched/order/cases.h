// Whether there is an order within a limit, case by case.
#pragma once

#include "memsched/order/problem.h"
#include "memsched/support/progress.h"

#include <vector>

namespace memsched::order {

struct Settled {
    std::vector<OpId> order; // within the limit; empty: none was found
    bool impossible = false; // there is none
};

// Deduces what all such orders have in common, tries some, and else takes two ops that may run either way round: both
// cases are problems of the same kind. Gives up after so many.
// critical: of how many ops, those that need most, this is learned. room: as in `deduce`.
Settled settle(const Problem& problem, Bytes limit, std::size_t critical, std::size_t cases, std::size_t room,
               Pace& pace);

} // namespace memsched::order
