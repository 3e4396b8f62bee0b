// What every order holds at least while an op runs.
#pragma once

#include "memsched/planners/order_problem.h"

#include <vector>

namespace memsched {

// The ops that must run before and after each op, as rows of bits.
class Reach {
  public:
    explicit Reach(const OrderProblem& problem);

    std::size_t words() const { return words_; }
    const std::uint64_t* ancestors(OpId op) const { return up_.data() + at(op) * words_; }
    const std::uint64_t* descendants(OpId op) const { return down_.data() + at(op) * words_; }
    std::size_t ancestor_count(OpId op) const;
    std::size_t descendant_count(OpId op) const;

  private:
    std::size_t words_;
    std::vector<std::uint64_t> up_, down_;
};

// By op: its own tensors and scratch, and the tensors that some op before it and some op after it touch. O(ops x nets /
// 64) for the bits, and at most ops x nets additions.
std::vector<Bytes> held_at_least(const OrderProblem& problem, const Reach& reach);

// A choice that an order may have made: `op` has run already, or it has not.
struct Given {
    OpId op = -1; // -1: nothing is given
    bool ran = false;
};

// What every order in which that is so holds at least while `op` runs, or `enough` if it is no less: a minimum cut
// between the ops before it and those after it.
Bytes held_exactly(const OrderProblem& problem, const Reach& reach, OpId op, Bytes enough, Given given = {});

} // namespace memsched
