// While a plan is built: for which op each tensor is wanted next, and how long it takes to run it again.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/id_lists.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace memsched {

// A tensor that is not at hand (neither on the device nor on the host) runs again when it is wanted, with all that its
// writer reads and that is not at hand either. So what is at hand may be wanted for the sake of what is not. When one
// tensor comes or goes, both answers change only along what is not at hand, and only there are they computed again;
// costs only for who asks, as where a long stretch runs again, each of its tensors changes the costs of all behind it.
class Wanted {
  public:
    static constexpr OpId never = std::numeric_limits<OpId>::max();
    static constexpr Seconds impossible = std::numeric_limits<Seconds>::infinity();

    // Keeps a reference to graph.
    explicit Wanted(const Graph& graph);

    // Before the first op. Ops from `last` on do not run again.
    void reset(OpId last);
    // The first op of the list that had not run has run.
    void ran();
    // At first, all tensors are at hand: those that are not yet written do not run again.
    void set(TensorId tensor, bool at_hand);

    // The op for which the tensor is wanted next: the one that is prepared now, or a later one.
    OpId next(TensorId tensor) {
        if (demands_.low <= demands_.high) {
            settle_demands();
        }
        return next_[at(tensor)];
    }
    // Seconds to run it again with all that is not at hand; what is needed twice counts twice.
    // Impossible if the op for which it is wanted comes after an update of what that reads.
    Seconds again(TensorId tensor);

    // The work done since this was last asked, in steps of some nanoseconds: where much is not at hand, an answer may
    // change for all ops.
    std::int64_t work() { return std::exchange(work_, 0); }

  private:
    struct Uses {
        std::uint32_t next = 0;  // the first of its readers_ that has not run
        std::int32_t crowd = -1; // index into crowds_, if there are many
    };
    // What readers that have run are wanted for, and these; the least first. Entries may be out of date.
    using Crowd = std::priority_queue<std::pair<OpId, OpId>, std::vector<std::pair<OpId, OpId>>, std::greater<>>;
    // Ops whose answer may have changed.
    struct Due {
        std::vector<std::uint64_t> bits;
        std::size_t low = 0, high = 0; // no bit outside these words
        void add(OpId op);
        void settled() { // all bits are gone
            low = bits.size();
            high = 0;
        }
    };

    bool never_again(OpId op) const { return op >= last_ || graph_.op(op).once; }
    Seconds own(OpId op) const {
        const bool updated = !before_.empty() && before_[at(op)] < now_;
        return never_again(op) || updated ? impossible : graph_.op(op).choices[0].time;
    }
    void update_next(TensorId tensor);
    OpId least_demand(TensorId tensor); // of the readers that have run
    void demanded(TensorId tensor, OpId reader);
    void cost_changed(TensorId tensor); // for its readers that have run
    void update_cost(OpId op);
    void settle_cost(OpId op);
    void update_demand(OpId op);
    void settle_demands();

    const Graph& graph_;
    IdLists readers_; // by tensor, as the next
    std::vector<Uses> uses_;
    std::vector<Crowd> crowds_;
    OpId now_ = 0, last_ = never;
    std::int64_t work_ = 0;
    std::vector<std::uint8_t> at_hand_; // by tensor
    std::vector<OpId> next_;
    std::vector<Seconds> cost_;       // by op
    std::vector<std::uint8_t> stale_; // by op: its cost is out of date; it is computed when somebody asks
    // By op, of graphs with persistent tensors: the first op that updates what it reads, after it in the list; and the
    // first of these for all that would run with it.
    std::vector<OpId> before_, in_time_;
    std::vector<OpId> demand_; // by op: for which op one of its outputs is wanted that is not at hand
    Due demands_;
    std::vector<TensorId> pending_; // within one call
    std::vector<OpId> due_;
};

} // namespace memsched
