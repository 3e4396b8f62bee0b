// The order of ops that holds the least memory (Steiner et al., OLLA, eq. 14), exactly.
#pragma once

#include "memsched/order/problem.h"

#include <vector>

namespace memsched::order {

struct Solution {
    std::vector<OpId> order;
    Bytes peak = 0;        // bytes
    Bytes lower_bound = 0; // bytes; no order has a lower peak
    std::int64_t visited = 0;
};

// Bytes for data on all pairs of ops, used by the bounds; parts that do not fit go without. The bound by what must be
// held takes as much for about 32,000 ops in one part. Deductions keep cuts of up to this many bytes.
inline constexpr std::size_t most_bytes = std::size_t{1} << 28;

// Anytime: when progress says stop, the best order so far with its proof. Never worse than the listed order.
Solution least_memory_order(const Problem& problem, const Progress& progress, std::size_t room = most_bytes);

// A bound from what must be held only.
Bytes least_memory_bound(const Problem& problem, const Progress& progress, std::size_t room = most_bytes);

// A random order, within limit (bytes) as far as greedy choices allow. Empty if progress says stop.
std::vector<OpId> random_order(const Problem& problem, Bytes limit, std::uint64_t seed, const Progress& progress);

} // namespace memsched::order
