// Ops that have run, those that are ready, and the bytes that are held. Runs can be undone, the last first.
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
    const std::vector<OpId>& order() const { return order_; } // that ran so far
    const std::vector<OpId>& ready() const { return ready_; } // in no particular order
    bool ran(OpId op) const { return ran_[at(op)] != 0; }
    bool is_ready(OpId op) const { return place_[at(op)] >= 0; }
    bool done() const { return order_.size() == problem_.ops(); }

    // For an op that is ready: the bytes held while it runs, and by how much they differ afterwards.
    Bytes needs(OpId op) const;
    Bytes change(OpId op) const;

    // Ends of a net that have passed, and that are still to come.
    std::int32_t met(NetId net) const { return met_[at(net)]; }
    std::int32_t left(NetId net) const { return ends_[at(net)] - met_[at(net)]; }
    // Of a net of an op that ran: the op was the first to touch it; only one end is still to come.
    bool just_begun(NetId net) const { return met_[at(net)] == 1 && ends_[at(net)] > 1; }
    bool one_left(NetId net) const { return met_[at(net)] + 1 == ends_[at(net)]; }

    void run(OpId op);
    void undo();

  private:
    void add_ready(OpId op);
    void remove_ready(OpId op);

    const Problem& problem_;
    Bytes memory_ = 0;
    std::vector<std::int32_t> met_;     // by net: ends that have passed; all of them or none: not held
    std::vector<std::int32_t> ends_;    // by net: how many it has, with start and end of time
    std::vector<std::int32_t> waiting_; // by op: those it waits for
    std::vector<std::int32_t> place_;   // by op: where it is in ready_, or -1
    std::vector<std::uint8_t> ran_;
    std::vector<OpId> ready_, order_;
};

} // namespace memsched::order
