// Deduces what all orders with a low peak have in common, and decides case by case whether there are any.
#pragma once

#include "memsched/order/bound.h"

#include <utility>
#include <vector>

namespace memsched::order {

// A problem with additional precedences, which keeps all orders whose peak is less than `below`. Op k was ops[k].
struct Deduced {
    Problem problem;
    std::vector<OpId> ops;
    Bytes below = 0; // bytes, more than `lower` unless only lower was requested
    Bytes lower = 0; // bytes; no order has a lower peak
};

// The same ops with additional precedences, in a topological order; empty if these form a cycle.
Deduced with_precedences(const Problem& problem, const std::vector<std::pair<OpId, OpId>>& edges);

// lower: no order has a lower peak. upper: only orders below it matter. For ops with large needs, and each op that may
// run before or after them, minimum cuts give the need in either case; a case above `lower` is ruled out. If no order
// is left, lower is raised to the least price ruled out, and so on until nothing more follows. room: bytes for cuts
// that are kept at a time, in addition to one.
Deduced deduce(const Problem& problem, Bytes lower, Bytes upper, std::size_t critical, std::size_t room, Pace& pace);

struct Settled {
    std::vector<OpId> order; // within the limit; empty if none was found
    bool impossible = false; // whether it is proven that there is none
};

// Deduces what all orders within the limit have in common, tries some, and otherwise branches on two ops that may run
// in either order: both cases are problems of the same kind. Gives up after `cases` of them.
// critical: the number of ops, those that need most, to deduce from.
Settled settle(const Problem& problem, Bytes limit, std::size_t critical, std::size_t cases, std::size_t room,
               Pace& pace);

} // namespace memsched::order
