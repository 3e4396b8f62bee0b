// Turns a decision for each gap of each tensor (keep, swap or recompute) into a list of steps, in fluid memory.
// docs/algorithms.md has the rules.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/build/fetch_places.h"

#include <span>
#include <tuple>
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

// Builds plans for one graph, many times; one object per thread. Ops first run in the listed order.
class GapBuilder {
  public:
    // link: whether a tensor that was to be kept may travel when memory is short. Keeps a reference to graph. Throws
    // std::invalid_argument if an op has several choices.
    GapBuilder(const Graph& graph, bool link);

    const std::vector<Gap>& gaps() const { return gaps_; }
    // Whether a tensor may be freed for its writer to run again.
    bool recomputable(TensorId tensor) const { return fact(tensor).again; }

    // Fills `list`; false if something has no room in `capacity` bytes (resident excluded). One class per gap.
    bool build(std::span<const MapClass> classes, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    // Constant data, by tensor.
    struct Fact {
        Bytes bytes = 0;
        std::int32_t first_gap = -1; // index into gaps_; they are in the order of their ops
        std::int32_t gaps = 0;
        bool again = false;  // its writer may run again
        bool stays = false;  // never freed for good, as in the plain run: no op reads it
        bool result = false; // written, and no op reads it
    };
    // Changing data, by tensor.
    struct State {
        bool here = false, on_host = false;
        bool kept = false; // its present gap is to be kept
        std::int32_t locks = 0;
        std::int32_t gap = 0;    // the next one that has not begun, counted from first_gap
        std::int32_t demand = 0; // index into demands_ of the next one
    };
    // A tensor that may be dropped to make room: first those that are only passing, the one with the latest demand
    // first.
    struct Yielding {
        bool passing;
        OpId demand;
        TensorId tensor;
        bool operator<(const Yielding& other) const {
            return std::tie(passing, demand, tensor) < std::tie(other.passing, other.demand, other.tensor);
        }
    };

    bool pass(std::span<const MapClass> classes); // over all ops
    void reset();
    void collect_demands();
    bool run(OpId op, TensorId wanted); // wanted: the output for which it runs again, or -1
    bool run_op(OpId id, TensorId wanted);
    bool skips_tape(const Op& op, TensorId wanted);
    bool bring(TensorId tensor);
    bool make_room(Bytes bytes);
    void arrive(TensorId tensor);
    void drop(TensorId tensor);
    void send(TensorId tensor);
    void touch(TensorId tensor, OpId op); // ends a gap, and begins the next
    void begin(TensorId tensor, MapClass kind);
    void may_yield(TensorId tensor);
    OpId next_demand(TensorId tensor, OpId from);

    const Fact& fact(TensorId tensor) const { return facts_[at(tensor)]; }
    State& state(TensorId tensor) { return state_[at(tensor)]; }

    const Graph& graph_;
    bool link_;
    FetchPlaces places_;
    std::vector<Gap> gaps_;
    std::vector<Fact> facts_;
    std::vector<TensorId> early_;  // tensors with a gap from the start,
    std::vector<TensorId> unread_; // and inputs that no op reads

    std::span<const MapClass> classes_;
    Bytes capacity_ = 0, live_ = 0;
    OpId now_ = 0;
    bool foresees_ = false; // the first of two passes: it finds the demands, and knows no memory
    int depth_ = 0;
    std::size_t repeated_ = 0;
    std::vector<State> state_;
    std::vector<std::pair<TensorId, OpId>> asked_; // of the first pass, in order
    std::vector<std::int32_t> first_demand_;       // by tensor, and one more: index into demands_
    std::vector<OpId> demands_;                    // the ops during which the tensor is read, by whatever runs
    std::vector<TensorId> passing_;                // brought back for the current op
    std::vector<Yielding> yielding_, locked_;      // a heap; stale entries are skipped
    bool scarce_ = false;
    Outline outline_;
};

} // namespace memsched
