// Turns a decision for each gap of each tensor (keep, swap or recompute) into a list of steps, in fluid memory.
// docs/algorithms.md has the rules.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/build/fetch_places.h"
#include "memsched/build/wanted.h"
#include "memsched/model/device.h"

#include <span>
#include <utility>
#include <vector>

namespace memsched {

// Two successive touches of a tensor, with other ops between: it is written or read by `from` (-1: there from the
// start), and next read by `to` (the number of ops: nobody reads it in the listed order, but an op that runs again
// may).
struct Gap {
    TensorId tensor = -1;
    OpId from = -1, to = -1;
};

// What goes first when memory is short: that with the least price / (bytes * wait ^ (1 / 2^roots)). The price is the
// time to run the tensor again, or to send and fetch it, whichever is less; the wait is the time until it is wanted, in
// the plain run.
struct Eviction {
    int roots = 1;
    Seconds travel = 0;        // price per byte that is sent and fetched, in addition to the wait for its memory
    bool forward_only = false; // ops of the backward do not run again
};

// Builds plans for one graph, many times; one object per thread. Ops first run in the listed order.
class GapBuilder {
  public:
    // Tensors travel if the device has a link. Keeps references to graph and progress. Throws std::invalid_argument if
    // an op has several choices.
    GapBuilder(const Graph& graph, const Device& device, const Progress& progress);

    const std::vector<Gap>& gaps() const { return gaps_; }

    // Fills `list`; false if something has no room in `capacity` bytes (resident excluded). classes: one per gap; what
    // is to be kept may still go when memory is short. weights: of the prices, by tensor; empty: all 1. Throws Stopped
    // when told to stop.
    //
    // Of persistent tensors, the last gap goes on to the first read in the next repetition. Where it is to be swapped,
    // or the tensor has to leave in it, the tensor is on the host at the border. Inputs and weights stay where the last
    // op reads them. hosted: by op, whether it runs on the host; empty: none does. What such an op reads is sent there,
    // and what it changes is there at the border, unless an op on the device reads it later.
    bool build(std::span<const MapClass> classes, std::span<const float> weights, const Eviction& eviction,
               std::span<const std::uint8_t> hosted, Bytes capacity, StepList& list);

  private:
    // Constant data, by tensor.
    struct Fact {
        Bytes bytes = 0;
        std::int32_t first_gap = -1; // index into gaps_; they are in the order of their ops
        std::int32_t gaps = 0;
        bool stays = false;  // never freed for good, as in the plain run: no op reads it
        bool result = false; // written, and no op reads it
        bool small = false;  // it makes hardly any room
        bool persistent = false, updated = false;
        OpId first = -1; // the first op that reads it
    };
    // Changing data, by tensor.
    struct State {
        bool here = false, on_host = false;
        std::int32_t locks = 0;
        std::int32_t gap = 0;       // the present one, or the next, counted from first_gap
        std::int32_t place = -1;    // in the list of those present
        bool listed = false;        // in shortlist_
        bool used = false;          // read in this repetition
        bool kept = false;          // has bytes on the host
        bool changed_there = false; // what changed it last ran on the host, and left a copy there
        Seconds touched = 0;        // the end of the last run that read or wrote it
    };

    bool pass();
    void reset();
    bool run(OpId op, TensorId wanted); // wanted: the output for which it runs again, or -1
    bool run_op(OpId id, TensorId wanted);
    bool skips_tape(const Op& op, TensorId wanted, OpId until);
    bool bring(TensorId tensor);
    bool make_room(Bytes bytes);
    struct Price {
        Seconds seconds;
        bool travels;
    };
    Price price(TensorId tensor);
    bool wanted_again(TensorId tensor);
    bool may_travel(TensorId tensor) const;
    Seconds sent(TensorId tensor) const;
    double score(TensorId tensor); // what has the least goes first; infinity: it cannot go
    TensorId least_of(const std::vector<TensorId>& among);
    TensorId first_to_go();
    void make_shortlist();
    void shortlist(TensorId tensor);
    void arrive(TensorId tensor);
    void drop(TensorId tensor);
    void send(TensorId tensor);
    void touch(TensorId tensor, OpId op); // ends a gap, and begins the next
    void advance_events();

    // gap_border.cpp, for persistent tensors.
    bool build_repeated(StepList& list);
    void find_hosted();
    bool choose_border();
    bool update_on_host(OpId op);
    bool hosted(OpId op) const { return at(op) < hosted_.size() && hosted_[at(op)]; }
    bool crosses_border(TensorId tensor); // whether it would be off the device at the border if it left now
    Price price_of_persistent(TensorId tensor);
    Seconds wait_across_border(TensorId tensor) const;
    void close_repetition();
    std::vector<Copies> border() const; // by tensor, before fetches are placed
    bool sends(TensorId tensor);        // whether it has to be copied to the host when it leaves

    std::vector<TensorId>& present(TensorId tensor) { return fact(tensor).small ? small_ : large_; }
    const Fact& fact(TensorId tensor) const { return facts_[at(tensor)]; }
    State& state(TensorId tensor) { return state_[at(tensor)]; }
    const State& state(TensorId tensor) const { return state_[at(tensor)]; }

    const Graph& graph_;
    Device device_;
    Pace pace_;
    bool link_;
    OpId turn_;
    FetchPlaces places_;
    Wanted wanted_;
    std::vector<Gap> gaps_;
    std::vector<Fact> facts_;
    std::vector<Seconds> begin_;   // of each op in the plain run, and the end of the last
    std::vector<TensorId> early_;  // tensors with a gap from the start,
    std::vector<TensorId> unread_; // and inputs that no op reads
    std::vector<TensorId> persistent_;

    std::span<const MapClass> classes_;
    std::span<const float> weights_;
    Eviction eviction_;
    std::span<const std::uint8_t> hosted_;
    Bytes capacity_ = 0, live_ = 0;
    Bytes host_left_ = 0;
    Seconds clock_ = 0, link_free_ = 0; // an estimate: the end of the last run, and of the last offload
    OpId now_ = 0;
    int depth_ = 0;
    std::size_t repeated_ = 0;
    std::vector<State> state_;
    // Persistent tensors: those that are on the host at the border, also on the host, and those that left across it.
    std::vector<std::uint8_t> away_, backed_, crossed_;
    // Persistent tensors: those that an op on the host changes last, and of these those that no op on the device reads
    // then; and those that any reads.
    std::vector<std::uint8_t> changed_there_, ends_there_, read_here_;
    std::vector<TensorId> large_, small_; // on the device, with bytes
    // Of many large ones, those with the least score when this list was made, and those that were touched since.
    std::vector<TensorId> shortlist_;
    std::vector<std::pair<double, TensorId>> scores_;
    std::int64_t still_good_ = 0; // for so many choices
    std::vector<PlanEvent> events_;
    Outline outline_;
};

} // namespace memsched
