// The order with the least memory as a problem of nets: a tensor is the set of the ops that touch it, and it is held
// while some of them have run and others have not. So time can be reversed, and a part of a problem is a problem.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/id_lists.h"

#include <utility>
#include <vector>

namespace memsched::order {

using NetId = std::int32_t;

// Ops are numbered in a topological order. One entry per net: bytes, and whether it is held from before the first op
// (from_start) or until after the last (to_end). One entry per op: scratch, the bytes that it holds only while it runs.
struct Problem {
    Bytes base = 0;  // held throughout
    Bytes start = 0; // no order has a lower peak: held before the first op, with inputs that no op reads
    std::vector<Bytes> bytes;
    std::vector<std::uint8_t> from_start, to_end;
    std::vector<Bytes> scratch;
    IdLists members; // ops of each net
    IdLists nets;    // nets of each op
    IdLists before;  // the ops that an op waits for
    IdLists after;   // the ops that wait for it

    std::size_t ops() const { return scratch.size(); }
};

// keep, one entry per tensor: whether it stays until the end. Other tensors end with their last reader, or with their
// writer if nobody reads them; weights stay. Inputs that no op reads end before the first op. Each op runs as
// `least_run` says.
Problem order_problem(const Graph& graph, const std::vector<std::uint8_t>& keep);

// The same in reversed time; op k becomes op n - 1 - k.
Problem reversed(const Problem& problem);
// An order of one as an order of the other.
std::vector<OpId> reversed(std::vector<OpId> order);

// The problem between a fixed prefix and suffix. ops: the remaining ops, each after those that it waits for, renumbered
// in this order; of all others, those in `ran` have run already, and the rest run afterwards. Edges (in new numbers,
// from lower to higher) are added as precedences.
Problem part_of(const Problem& problem, const std::vector<OpId>& ops, const std::vector<std::uint8_t>& ran,
                const std::vector<std::pair<OpId, OpId>>& edges = {});

// The parts of a problem in which no op waits for one of a later part, and all orders agree on what has run when a part
// begins. begins: the first op of each part, ascending.
std::vector<Problem> split(const Problem& problem, const std::vector<OpId>& begins);

// The peak of this order in bytes.
Bytes peak_of(const Problem& problem, const std::vector<OpId>& order);

} // namespace memsched::order
