// The ops that have run, the ops that are ready, and the bytes held. Runs can be undone in reverse order.
#pragma once

#include "memsched/order/problem.h"

#include <cstdint>
#include <vector>

namespace memsched::order {

class State {
  public:
    // Keeps a reference to problem.
    explicit State(const Problem& problem);

    const Problem& problem() const { return problem_; }
    Bytes memory() const { return memory_; }
    const std::vector<OpId>& order() const { return order_; } // ops that have run so far
    const std::vector<OpId>& ready() const { return ready_; } // in no particular order
    bool is_ready(OpId op) const { return place_[at(op)] >= 0; }
    bool done() const { return order_.size() == problem_.ops(); }

    // For a ready op: the bytes held while it runs, and the change afterwards.
    Bytes needs(OpId op) const;
    Bytes change(OpId op) const;

    // The number of ends of a net that have passed, and that remain.
    std::int32_t met(NetId net) const { return met_[at(net)]; }
    std::int32_t left(NetId net) const { return ends_[at(net)] - met_[at(net)]; }
    // For a net of an op that ran: whether the op was the first to touch it, or only one end remains.
    bool just_begun(NetId net) const { return met_[at(net)] == 1 && ends_[at(net)] > 1; }
    bool one_left(NetId net) const { return met_[at(net)] + 1 == ends_[at(net)]; }

    void run(OpId op);
    void undo();

  private:
    void add_ready(OpId op);
    void remove_ready(OpId op);

    const Problem& problem_;
    Bytes memory_ = 0;
    std::vector<std::int32_t> met_;     // by net: ends that have passed; the net is not held if it is none or all
    std::vector<std::int32_t> ends_;    // by net: number of ends, including start and end of time
    std::vector<std::int32_t> waiting_; // by op: predecessors that have not run
    std::vector<std::int32_t> place_;   // by op: its index in ready_, or -1
    std::vector<OpId> ready_, order_;
};

} // namespace memsched::order
