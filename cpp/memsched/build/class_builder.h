// From "keep, swap or recompute each feature map" to a list of steps, in fluid memory. The forward drops what is not
// kept; the backward brings back what each of its ops reads, by a fetch or by running ops again, and drops it once more
// where something else would not fit. docs/algorithms.md has the rules.
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/model/lifetimes.h"

#include <functional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace memsched {

enum class MapClass : std::uint8_t { keep, swap, recompute };

// Makes plans for one graph, many times over; one object a thread. The ops before the turn are the forward, all others
// the backward.
class ClassBuilder {
  public:
    // Keeps a reference to graph. Throws std::invalid_argument where an op has several choices.
    explicit ClassBuilder(const Graph& graph);

    const std::vector<TensorId>& maps() const { return maps_; }

    // Asked now and then while ops run again and again; true: the plan is given up, as if it did not fit.
    void ask(std::function<bool()> hopeless) { hopeless_ = std::move(hopeless); }

    // Whether all steps but the prefetches fit into `capacity` bytes (resident excluded), given one class a map.
    bool fits(std::span<const MapClass> classes, Bytes capacity);

    // What the last walk held at most (bytes, resident excluded): of its forward, and in all. It would fit into that.
    Bytes most_of_forward() const { return most_of_forward_; }
    Bytes most() const { return most_; }

    // Fills `list`; false when something has no room.
    bool build(std::span<const MapClass> classes, Bytes capacity, const FetchRule& rule, StepList& list);

  private:
    // What does not change, by tensor.
    struct Fact {
        Bytes bytes = 0;
        bool map = false;
        bool stays = false;          // a weight, or a result that no op reads
        bool input = false;          // on the device from the start; stays as long as something may run again
        std::int32_t first_use = 0;  // index into uses_ of its first backward reader,
        std::int32_t beyond_use = 0; // and behind its last
    };
    // What does, by tensor.
    struct State {
        MapClass kind = MapClass::keep;
        bool here = false, on_host = false;
        std::int32_t locks = 0;
        std::int32_t use = 0; // index into uses_ of the first that is not over
    };
    // A map that makes room for others, the one with the latest use first.
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
    bool bring(TensorId tensor);
    bool has_room(Bytes bytes);   // beside what lives
    bool make_room(Bytes bytes);  // by dropping what is needed the latest
    void arrive(TensorId tensor); // in the backward
    void drop(TensorId tensor);
    void may_yield(TensorId tensor);
    bool done_with(TensorId tensor); // no backward op reads it any more, and it may go
    OpId next_use(TensorId tensor);

    Fact& fact(TensorId tensor) { return facts_[static_cast<std::size_t>(tensor)]; }
    State& state(TensorId tensor) { return state_[static_cast<std::size_t>(tensor)]; }

    const Graph& graph_;
    std::function<bool()> hopeless_;
    Lifetimes lifetimes_;
    FetchPlaces places_;
    std::vector<TensorId> maps_;
    std::vector<Fact> facts_;
    std::vector<OpId> uses_;
    std::vector<std::vector<TensorId>> forward_end_; // by op: tensors whose last forward use it is
    std::vector<std::vector<TensorId>> last_read_;   // by op of the backward: tensors that no later one reads

    Bytes capacity_ = 0, live_ = 0, most_of_forward_ = 0, most_ = 0;
    OpId now_ = 0; // the op of the backward that is being made possible
    bool repeats_ = false;
    std::size_t repeated_ = 0; // runs of ops that ran before
    int depth_ = 0;            // of runs that are under way
    std::vector<State> state_;
    std::vector<std::uint8_t> ran_;
    bool scarce_ = false;            // room had to be made; from then on there is a heap of
    std::vector<Yielding> yielding_; // all maps that are here and may go; what is no longer true is skipped
    std::vector<Yielding> locked_;   // of these, what may not go now
    std::vector<TensorId> passing_;  // brought back for the present op, and perhaps for it alone
    Walk walk_;
};

// The least budget (bytes, resident included) at which a plan for such classes exists, its fetches on demand; all must
// be keep or swap. All ops must have one choice.
Bytes least_budget(const Graph& graph, std::span<const MapClass> classes);

} // namespace memsched
