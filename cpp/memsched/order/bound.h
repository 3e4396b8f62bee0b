// What every order holds at least while a given op runs.
#pragma once

#include "memsched/order/problem.h"
#include "memsched/support/min_cut.h"

#include <vector>

namespace memsched::order {

// The ops that must run before and after each op, as rows of bits.
class Reach {
  public:
    Reach(const Problem& problem, Pace& pace);

    // Approximate memory of a Reach for so many ops.
    static std::size_t bytes(std::size_t ops) { return 2 * ops * ((ops + 63) / 64) * sizeof(std::uint64_t); }

    std::size_t words() const { return words_; }
    const std::uint64_t* ancestors(OpId op) const { return up_.data() + at(op) * words_; }
    const std::uint64_t* descendants(OpId op) const { return down_.data() + (ops_ - 1 - at(op)) * words_; }
    bool is_before(OpId first, OpId then) const {
        return (ancestors(then)[at(first) / 64] >> (at(first) % 64) & 1) != 0;
    }
    bool in_any_order(OpId a, OpId b) const { return a != b && !is_before(a, b) && !is_before(b, a); }

  private:
    std::size_t ops_, words_;
    std::vector<std::uint64_t> up_, down_; // by op, in forward and in reverse order
};

// By op: its own tensors and scratch. The fallback if time or memory do not suffice for held_at_least.
std::vector<Bytes> touched_at_least(const Problem& problem);

// By op: its own tensors and scratch, plus the tensors that some op before it and some op after it touch.
// O(ops x nets / 64) for the bits, and at most ops x nets additions.
std::vector<Bytes> held_at_least(const Problem& problem, const Reach& reach, Pace& pace);

// The least that orders hold while one op runs: a minimum cut between the ops before it and those after it.
class HeldCut {
  public:
    HeldCut(const Problem& problem, const Reach& reach, OpId op, Pace& pace);

    // Over all orders; capped at `enough`. Call this once, and the others only if it returns less than enough.
    Bytes least(Bytes enough);
    // Over the orders in which another, unrelated op ran before, or did not; capped at `enough`. Results <= `fits` may
    // be any value from least() to `fits`; they are cheap if an earlier answer shows them.
    Bytes least_if(OpId other, bool ran, Bytes fits, Bytes enough);
    std::size_t bytes() const { // bytes that this object uses
        return cut_.bytes() + sizeof(node_[0]) * node_.capacity() + may_run_.capacity() + may_not_.capacity();
    }

  private:
    static constexpr std::int32_t source = 0, sink = 1; // ops that have run, and ops that have not

    void note_cuts();

    Pace* pace_;
    std::vector<std::int32_t> node_; // by op
    MinCut cut_{2};
    Bytes held_ = 0;                              // held however the other ops are divided; then: in any order
    std::vector<std::uint8_t> may_run_, may_not_; // by node: some cut that fits has it on this side
};

} // namespace memsched::order
