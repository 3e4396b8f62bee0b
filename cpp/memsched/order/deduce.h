// What all orders with a low peak have in common.
#pragma once

#include "memsched/order/bound.h"
#include "memsched/support/progress.h"

#include <utility>
#include <vector>

namespace memsched::order {

// A problem with all orders whose peak is less than `below`, and with more that ops wait for. Op k was ops[k].
struct Deduced {
    Problem problem;
    std::vector<OpId> ops;
    Bytes below = 0; // bytes, more than `lower` unless lower is all that was asked for
    Bytes lower = 0; // bytes; no order at all has a lower peak
};

// The same ops with more that they wait for, in a topological order; none if that is impossible.
Deduced with_precedences(const Problem& problem, const std::vector<std::pair<OpId, OpId>>& edges);

// The ops that need most in any order by the simple bound, most first.
std::vector<OpId> needy_ops(const Problem& problem, const Reach& reach, std::size_t most, Pace& pace);

// lower: no order has a lower peak. upper: only orders below it matter. For ops that need much, and each op that may
// run before or after, minimum cuts tell what the first holds in either case; what that costs more than `lower` is
// ruled out. Where nothing is left, lower is raised to the least that was ruled out, and so on until nothing more is
// told. room: bytes of the cuts that are held at a time, beyond one.
Deduced deduce(const Problem& problem, Bytes lower, Bytes upper, std::size_t critical, std::size_t room, Pace& pace);

} // namespace memsched::order
