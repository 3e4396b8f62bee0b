// What must outlive the start of one op, and the cheapest way to have it: hold it, or run ops again.
#pragma once

#include "memsched/bounds/travellers.h"
#include "memsched/model/graph.h"
#include "memsched/support/min_cut.h"
#include "memsched/support/progress.h"

#include <cstdint>
#include <vector>

namespace memsched {

// When op p first starts, its ancestors have run and its descendants have not. So each tensor that p or a descendant
// reads and that neither writes is held then, on the device or on the host, or its writer runs later, for which its own
// reads must be had likewise. That costs an ancestor a second run, and costs any other op nothing, since it may be its
// first. The cheapest choice at a price per byte held is a minimum cut.
// Where lists are repeated, all that must be there in each repetition is held then, too. What an op reads counts only
// if it runs on the device in any case.
class Retention {
  public:
    // Which ops have run when p starts: its ancestors alone, for a bound on every order, or all that are listed before
    // it. changes: of this graph; without them, travel() does not know when it is changed. Keeps a reference to graph.
    enum class Order { any, listed };
    Retention(const Graph& graph, OpId p, Order order, const LargeUpdates* changes = nullptr);

    struct Point {
        Seconds least = 0; // every plan has again + price * held >= least,
        Seconds price = 0; // per byte: the one asked for, up to rounding
        Seconds again = 0; // time of the ops that run again in the cheapest choice,
        Bytes held = 0;    // and the bytes that it holds
    };
    // price: seconds per byte, positive and finite.
    Point cheapest(Seconds price, Pace& pace);

    // The last cheapest choice, by op and by tensor.
    std::vector<OpId> again() const;
    std::vector<TensorId> held() const;

    // What proves `least` of the last choice, since the maximum flow is the minimum cut: a price for each tensor, which
    // is at most the price of its bytes, and which the ops that read it to run again may take off what they pay.
    struct Flow {
        OpId op = -1; // -1: out of the tensor, into its writer; otherwise from this op into the tensor
        TensorId tensor = -1;
        Seconds seconds = 0;
    };
    std::vector<Flow> flows() const;

    OpId op() const { return p_; }
    Seconds before() const { return before_; }         // fastest times of the ops that have run,
    Seconds after() const { return after_; }           // of p and those that have not,
    Seconds most_again() const { return most_again_; } // the time of all ops that could help if they ran again
    Bytes needed() const { return needed_; }           // and the bytes held if nothing runs again
    Bytes reads() const { return reads_; }             // bytes that p reads: on the device in any case
    // Of what is held in any case and p does not read, the bytes that need not leave before p and come back after it,
    // but may travel at any time of a repetition. Zero without persistent tensors.
    struct Travel {
        Bytes all = 0;
        Bytes back_later = 0;       // of these, what comes back after p even so, since ops after p read it,
        Bytes out_earlier = 0;      // what leaves before p, since ops before p change it,
        Bytes out = 0, changed = 0; // what leaves in each repetition, and after an op has changed it
        Seconds quiet = 0;          // the time of p and what runs between p and all changes
    };
    const Travel& travel() const { return travel_; }
    // The least that the first run of p holds beside what is needed: if p may run again, its tape can wait.
    Bytes own() const { return own_; }

  private:
    enum class Side : std::uint8_t { earlier, later, either };
    struct Edge {
        Seconds time = 0; // its capacity is a time or bytes, or unlimited
        Bytes bytes = 0;
        bool unlimited = false;
        Flow ends; // where it counts as a flow
    };

    std::vector<Side> sides(Order order) const; // of each op
    void find_own();
    std::vector<TensorId> find_travel(const std::vector<Side>& side, const LargeUpdates* changes);
    void add_edge(std::int32_t from, std::int32_t to, Edge edge);

    const Graph& graph_;
    OpId p_;
    Seconds before_ = 0, after_ = 0, most_again_ = 0;
    Bytes needed_ = 0, reads_ = 0, own_ = 0, most_held_ = 0;
    Travel travel_;
    double per_second_ = 1;                                 // units of flow, in the last choice
    std::vector<std::int32_t> node_of_op_, node_of_tensor_; // -1: none
    std::vector<OpId> ops_;                                 // with a node
    std::vector<TensorId> tensors_;
    std::vector<Edge> edges_;
    std::vector<Bytes> capacities_;
    MinCut cut_;
    std::vector<std::uint8_t> wanted_; // by node: on the source's side of the last cut
};

} // namespace memsched
