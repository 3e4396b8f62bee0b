// Turns a class for each feature map (keep, swap or recompute) into a list of steps, in fluid memory. The forward drops
// maps that are not kept. The backward brings back what each op reads, by a fetch or by recomputation, and drops it
// again if something else would not fit. docs/algorithms.md has the rules.
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/model/lifetimes.h"
#include "memsched/support/id_lists.h"

#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace memsched {

constexpr int deepest_run = 4000; // nested runs of ops, to limit the stack

enum class MapClass : std::uint8_t { keep, swap, recompute };

// Builds plans for one graph, many times; one object per thread. The ops before the turn are the forward, all others
// the backward.
class ClassBuilder {
  public:
    // Keeps a reference to graph. Throws std::invalid_argument if an op has several choices.
    explicit ClassBuilder(const Graph& graph);
    ClassBuilder(const ClassBuilder&) = delete; // facts_ point into uses_

    const std::vector<TensorId>& maps() const { return maps_; }
    const Lifetimes& lifetimes() const { return lifetimes_; }

    // Called now and then while ops are recomputed repeatedly; true: the plan is abandoned as if it did not fit.
    void ask(std::function<bool()> hopeless) { hopeless_ = std::move(hopeless); }

    // Whether all steps but the prefetches fit into `capacity` bytes (resident excluded), given one class per map.
    bool fits(std::span<const MapClass> classes, Bytes capacity);

    // Most bytes held in the last build (resident excluded): in its forward, and overall. It would fit into these.
    Bytes most_of_forward() const { return most_of_forward_; }
    Bytes most() const { return most_; }

    // Fills `list`; false if something has no room.
    bool build(std::span<const MapClass> classes, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    // Constant data, by tensor.
    struct Fact {
        Bytes bytes = 0;
        bool map = false;
        bool stays = false; // a result that no op reads
        bool input = false; // on the device from the start; stays while something may be recomputed
        IdLists::Ids uses;  // its backward readers
    };
    // Changing data, by tensor.
    struct State {
        MapClass kind = MapClass::keep;
        bool here = false, on_host = false;
        std::int32_t locks = 0;
        std::uint32_t use = 0; // the first remaining one of its uses
    };
    // A map that may be dropped to make room; the one with the latest use goes first.
    struct Yielding {
        OpId use;
        Bytes bytes;
        TensorId tensor;
        bool operator<(const Yielding& other) const {
            return std::tie(use, bytes, other.tensor) < std::tie(other.use, other.bytes, tensor);
        }
    };

    void reset(std::span<const MapClass> classes, Bytes capacity);
    bool forward();
    bool backward();
    bool run(OpId op);
    bool run_op(OpId id, const Op& op);
    bool bring_reads(const Op& op); // and locks them
    bool bring(TensorId tensor);
    bool has_room(Bytes bytes);   // in addition to what is alive
    bool make_room(Bytes bytes);  // by dropping what is needed last
    void arrive(TensorId tensor); // in the backward
    void drop(TensorId tensor);
    void may_yield(TensorId tensor);
    bool done_with(TensorId tensor); // no later backward op reads it, and it may be dropped
    OpId next_use(TensorId tensor);

    Fact& fact(TensorId tensor) { return facts_[at(tensor)]; }
    State& state(TensorId tensor) { return state_[at(tensor)]; }

    const Graph& graph_;
    std::function<bool()> hopeless_;
    Lifetimes lifetimes_;
    FetchPlaces places_;
    std::vector<TensorId> maps_;
    std::vector<Fact> facts_;
    IdLists uses_;
    std::vector<Bytes> made_;                        // by op: what it writes, and its workspace
    std::vector<std::vector<TensorId>> forward_end_; // by op: tensors whose last forward use is this op
    std::vector<std::vector<TensorId>> last_read_;   // by backward op: tensors that no later op reads

    Bytes capacity_ = 0, live_ = 0, most_of_forward_ = 0, most_ = 0;
    OpId now_ = 0; // the current backward op
    bool repeats_ = false;
    std::size_t repeated_ = 0; // repeated runs of ops,
    std::size_t brought_ = 0;  // and what they bring, since hopeless_ was last called
    int depth_ = 0;            // of nested runs
    std::vector<State> state_;
    std::vector<std::uint8_t> ran_;
    bool scarce_ = false;                    // whether room had to be made; then the heap is kept:
    std::priority_queue<Yielding> yielding_; // maps on the device that may be dropped; stale entries are skipped
    std::vector<Yielding> locked_;           // of these, maps that may not be dropped now
    std::vector<TensorId> order_;            // in which the ops that run now bring what they read, one after the other
    std::vector<TensorId> passing_;          // brought back for the current op, perhaps for it only
    Outline outline_;
};

// The least budget (bytes, resident included) for which a plan with these classes exists, with fetches on demand. All
// classes must be keep or swap, and all ops must have one choice.
Bytes least_budget(const Graph& graph, std::span<const MapClass> classes);

} // namespace memsched
