#include "memsched/planners/modnn/modnn.h"

#include "memsched/planners/modnn/state.h"
#include "memsched/support/errors.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

namespace memsched {
namespace {

using Scheme = ModnnState::Scheme;

// Line 16: whether a prefetch leaves room for the ops until its use. They use their least workspaces and first fit; if
// nothing fits, windows of the fewest bytes are cleared.

void foresee_end(const ModnnFacts& facts, OpId op, ModnnLayout& layout) {
    layout.memory.remove(Segment::workspace);
    for (const TensorId t : facts.graph.op(op).reads) {
        layout.used[at(t)] = 1;
    }
    for (const TensorId t : facts.graph.op(op).writes) {
        layout.arrive(t);
    }
    for (const TensorId t : facts.over[at(op)]) {
        if (layout.here[at(t)]) {
            layout.remove(t);
        }
    }
}

bool foresee_place(const ModnnFacts& facts, TensorId owner, Bytes bytes, const Flags& protects, ModnnLayout& layout) {
    const bool top = facts.goes_to_top(owner);
    auto low = layout.memory.first_fit(bytes, top);
    if (!low) {
        std::optional<Window> best;
        layout.each_window(bytes, protects, [&](Window&& window) {
            if (!best || window.held < best->held) {
                best = std::move(window);
            }
        });
        if (!best) {
            return false;
        }
        for (const TensorId t : best->tensors) {
            layout.remove(t);
        }
        low = top ? best->high - bytes : best->low;
    }
    layout.memory.place(owner, *low, bytes);
    if (owner >= 0) {
        layout.arrive(owner);
    }
    return true;
}

// The inputs, outputs and workspace of an op.
bool foresee_room(const ModnnFacts& facts, OpId op, ModnnLayout& layout) {
    const Flags protects = facts.touched(op, op);
    Tensors absent = facts.graph.op(op).reads;
    std::erase_if(absent, [&](TensorId t) { return layout.here[at(t)] != 0; });
    for (const Tensors& some : {facts.by_size(absent), facts.by_size(facts.graph.op(op).writes)}) {
        for (const TensorId t : some) {
            if (!foresee_place(facts, t, facts.bytes(t), protects, layout)) {
                return false;
            }
        }
    }
    const Bytes scratch = facts.base_workspace(op);
    return scratch == 0 || foresee_place(facts, Segment::workspace, scratch, protects, layout);
}

// Whether ops i + 1 .. s find room once i has run with `layout`, which includes the tensor to prefetch.
bool foresees(const ModnnFacts& facts, OpId i, OpId s, ModnnLayout layout, const std::function<void()>& tick) {
    foresee_end(facts, i, layout);
    for (OpId op = i + 1; op <= s; ++op) {
        tick(); // as s may be 10,000 ops away
        if (!foresee_room(facts, op, layout)) {
            return false;
        }
        foresee_end(facts, op, layout);
    }
    return true;
}

// The decisions of Algorithm 1, op by op.
class Algorithm1 {
  public:
    Algorithm1(const Graph& graph, const Device& device, bool foresee, const Progress& progress)
        : facts_(graph), foresee_(foresee), progress_(progress),
          state_(facts_, device, device.memory - graph.resident()), ops_(static_cast<OpId>(graph.ops().size())) {}

    ModnnSolution plan() {
        for (OpId i = 0; i < ops_; ++i) {
            tick(i);
            run(i);
        }
        return {state_.steps(), state_.makespan()};
    }

  private:
    struct Algorithm {
        std::int32_t choice = 0;
        Scheme place; // of its workspace
    };

    // Often, as an op may read and write 100,000 tensors.
    void tick(OpId i) const {
        if (progress_.tick(static_cast<double>(i) / ops_)) {
            throw Stopped{};
        }
    }

    std::optional<Scheme> scheme(OpId i, TensorId owner, Bytes bytes, const Flags& protects, Seconds now,
                                 OpId behind) const {
        return state_.scheme(owner, bytes, protects, now, behind, [&] { tick(i); });
    }

    std::optional<Bytes> first_fit(TensorId owner, Bytes bytes) const {
        return state_.layout().memory.first_fit(bytes, facts_.goes_to_top(owner));
    }

    // Lines 3 to 8: room for the op's inputs, outputs and least workspace.
    void make_room(OpId i) {
        const Flags protects = facts_.touched(i, i);
        const auto find = [&](TensorId owner, Bytes bytes) {
            tick(i);
            auto low = first_fit(owner, bytes);
            if (!low) {
                if (const auto found = scheme(i, owner, bytes, protects, state_.clock(), i)) {
                    state_.evict(found->victims);
                    low = found->low;
                }
            }
            return low;
        };
        for (const TensorId t : facts_.by_size(state_.missing_inputs(i))) {
            const auto low = find(t, facts_.bytes(t));
            if (!low) {
                defragment(i);
                return;
            }
            state_.prefetch(t, *low);
        }
        if (!reserve(i, find)) {
            defragment(i);
        }
    }

    template <class Find> bool reserve(OpId i, const Find& find) {
        for (const TensorId t : facts_.by_size(facts_.graph.op(i).writes)) {
            const auto low = find(t, facts_.bytes(t));
            if (!low) {
                return false;
            }
            state_.reserve(t, *low, facts_.bytes(t));
        }
        if (const Bytes scratch = facts_.base_workspace(i); scratch > 0) {
            const auto low = find(Segment::workspace, scratch);
            if (!low) {
                return false;
            }
            state_.reserve(Segment::workspace, *low, scratch);
            base_low_ = *low;
        }
        return true;
    }

    // Defragmentation: everything leaves, and what the op needs comes back without gaps. It fits by eq. (2).
    void defragment(OpId i) {
        state_.withdraw(Segment::workspace);
        for (const TensorId t : facts_.graph.op(i).writes) {
            state_.withdraw(t);
        }
        state_.evict_all();
        for (const TensorId t : facts_.by_size(state_.missing_inputs(i))) {
            state_.prefetch(t, *state_.layout().memory.first_fit(facts_.bytes(t), false));
        }
        reserve(i, [&](TensorId owner, Bytes bytes) { return first_fit(owner, bytes); });
    }

    // The earliest start of op s if op i runs from `start` for `time` and the ops between use their fastest algorithms.
    Seconds earliest_start(OpId i, OpId s, Seconds start, Seconds time) const {
        return std::accumulate(facts_.quickest.begin() + i + 1, facts_.quickest.begin() + s, start + time);
    }

    Seconds fetch_time(const Tensors& tensors) const {
        return std::accumulate(tensors.begin(), tensors.end(), 0.0,
                               [&](Seconds sum, TensorId t) { return sum + state_.fetch_time(t); });
    }

    // Eq. (4): tensors that would be late if fetched later.
    bool must_fetch(OpId i, OpId s, const Tensors& miss, Seconds start, Seconds time) const {
        return std::max(state_.fetched(), start + time) + fetch_time(miss) > earliest_start(i, s, start, time);
    }

    // Lines 9 to 14, eq. (5): the algorithm with the largest gain over the baseline, minus the cost of its workspace.
    Algorithm choose(OpId i, Seconds start) {
        const Op& op = facts_.graph.op(i);
        const std::int32_t base = facts_.base[at(i)];
        state_.withdraw(Segment::workspace);
        OpId s = i + 1;
        Tensors miss;
        while (s < ops_ && (miss = state_.missing_inputs(s)).empty()) {
            ++s;
        }
        Algorithm best;
        std::optional<Seconds> gain; // the baseline is always allowed, whatever its loss
        for (std::size_t k = 0; k < op.choices.size(); ++k) {
            const Choice& choice = op.choices[k];
            const bool is_base = static_cast<std::int32_t>(k) == base;
            if (!is_base && choice.time >= op.choices[at(base)].time) {
                continue;
            }
            const auto place = workspace_of(i, choice, is_base, start);
            if (!place) {
                continue;
            }
            const Seconds late = s < ops_ ? fetches_delayed(i, s, miss, start, choice, *place) : 0;
            const Seconds own = op.choices[at(base)].time - choice.time - place->delay - late;
            if (!gain || own > *gain) {
                gain = own;
                best = {static_cast<std::int32_t>(k), *place};
            }
        }
        return best;
    }

    // The place of an algorithm's workspace and its delay; none if even a scheme finds no room.
    std::optional<Scheme> workspace_of(OpId i, const Choice& choice, bool is_base, Seconds start) const {
        if (choice.workspace == 0) {
            return Scheme{0, StepList::no_address, {}};
        }
        if (const auto fit = is_base ? std::optional(base_low_) : first_fit(Segment::workspace, choice.workspace)) {
            return Scheme{std::max(0.0, state_.release_of(*fit, choice.workspace) - start), *fit, {}};
        }
        return scheme(i, Segment::workspace, choice.workspace, facts_.touched(i, i), start, i);
    }

    // The delay that the workspace causes to the fetches for op s.
    Seconds fetches_delayed(OpId i, OpId s, const Tensors& miss, Seconds start, const Choice& choice,
                            const Scheme& place) const {
        if (choice.workspace == 0 || !must_fetch(i, s, miss, start, choice.time)) {
            return 0;
        }
        SegmentList with = state_.layout().memory;
        for (const TensorId t : place.victims) {
            with.remove(t);
        }
        with.place(Segment::workspace, place.low, choice.workspace);
        Seconds late = 0;
        for (const TensorId t : miss) {
            if (first_fit(t, facts_.bytes(t)) && !with.first_fit(facts_.bytes(t), facts_.goes_to_top(t))) {
                late += state_.fetch_time(t);
            }
        }
        const Seconds done = std::max(state_.fetched(), start + place.delay + choice.time) + late;
        const Seconds wanted =
            std::max(earliest_start(i, s, start, choice.time), std::max(state_.fetched(), start) + fetch_time(miss));
        return std::max(0.0, done - wanted);
    }

    // Lines 15 to 27: prefetches that would be late if postponed, as far as there is room.
    void look_ahead(OpId i, Seconds start, Seconds time) {
        for (OpId s = i + 1; s < ops_; ++s) {
            const Tensors miss = state_.missing_inputs(s);
            if (miss.empty()) {
                continue;
            }
            if (!must_fetch(i, s, miss, start, time)) {
                return;
            }
            const Flags protects = facts_.touched(i, s);
            for (const TensorId t : miss) {
                tick(i);
                const auto low = first_fit(t, facts_.bytes(t));
                const auto place =
                    low ? std::optional(Scheme{0, *low, {}}) : scheme(i, t, facts_.bytes(t), protects, start, s);
                if (!place || (foresee_ && !leaves_room(i, s, t, *place))) {
                    return;
                }
                state_.evict(place->victims);
                state_.prefetch(t, place->low);
            }
        }
    }

    bool leaves_room(OpId i, OpId s, TensorId t, const Scheme& place) const {
        ModnnLayout layout = state_.layout();
        for (const TensorId victim : place.victims) {
            layout.remove(victim);
        }
        layout.memory.place(t, place.low, facts_.bytes(t));
        layout.arrive(t);
        return foresees(facts_, i, s, std::move(layout), [&] { tick(i); });
    }

    void run(OpId i) {
        const Op& op = facts_.graph.op(i);
        make_room(i);
        Seconds start = state_.clock();
        for (const TensorId t : op.reads) {
            start = std::max(start, state_.ready(t));
        }
        for (const TensorId t : op.writes) {
            start = std::max(start, state_.release_of(state_.low(t), facts_.bytes(t)));
        }
        const Algorithm algorithm = choose(i, start);
        const Choice& choice = op.choices[at(algorithm.choice)];
        state_.evict(algorithm.place.victims);
        if (choice.workspace > 0) {
            state_.reserve(Segment::workspace, algorithm.place.low, choice.workspace);
            start = std::max(start, state_.release_of(algorithm.place.low, choice.workspace));
        }
        look_ahead(i, start, choice.time);
        state_.run(i, algorithm.choice, algorithm.place.low, start);
    }

    ModnnFacts facts_;
    bool foresee_;
    const Progress& progress_;
    ModnnState state_;
    OpId ops_;
    Bytes base_low_ = 0; // address of the least workspace of the current op
};

} // namespace

ModnnSolution modnn(const Graph& graph, const Device& device, bool foresee, const Progress& progress) {
    const Bytes least = modnn_min_memory(graph);
    if (device.memory < least) {
        throw InfeasibleError("some op of '" + graph.name() + "' does not fit in " + std::to_string(device.memory) +
                                  " bytes; it needs M >= " + std::to_string(least),
                              least);
    }
    return Algorithm1(graph, device, foresee, progress).plan();
}

} // namespace memsched
