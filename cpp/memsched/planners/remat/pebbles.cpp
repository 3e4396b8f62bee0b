#include "memsched/planners/remat/pebbles.h"

#include "memsched/support/mix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace memsched {
namespace {

using Mask = std::uint64_t; // of ops or tensors

constexpr Mask one(std::size_t id) { return Mask{1} << id; }

constexpr std::size_t most_ways = 256; // to make room for one step

template <class Each> void each_of(Mask mask, const Each& each) {
    for (; mask != 0; mask &= mask - 1) {
        each(static_cast<std::size_t>(std::countr_zero(mask)));
    }
}

// Nothing else matters for what can follow: feasibility is decided by the order of the list.
struct State {
    Mask ran = 0, device = 0, host = 0;

    bool operator==(const State&) const = default;
};

struct StateHash {
    std::size_t operator()(const State& state) const { return mix(mix(mix(state.ran) + state.device) + state.host); }
};

// One way to run an op.
struct WayToRun {
    Step step;
    Mask writes = 0;
    Bytes bytes = 0; // written, and the workspace
    Seconds time = 0;
};

struct Position {
    State state;
    Seconds spent = 0;
    std::int32_t parent = -1;
    Mask freed = 0; // before the step
    Step step;
};

class Game {
  public:
    Game(const Graph& graph, const Device& device)
        : graph_(graph), capacity_(device.memory - graph.resident()), host_memory_(device.host_memory),
          reads_(graph.ops().size(), 0) {
        for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
            const Tensor& tensor = graph.tensors()[t];
            inputs_ |= tensor.source() ? one(t) : 0;
            const bool linked = device.d2h > 0 && device.h2d > 0 && tensor.bytes > 0;
            out_.push_back(linked ? transfer_time(tensor.bytes, device.d2h, device.latency) : 0);
            in_.push_back(linked ? transfer_time(tensor.bytes, device.h2d, device.latency) : 0);
            const bool ends = std::isfinite(out_.back() + in_.back());
            movable_ |= linked && ends ? one(t) : 0;
            all_seen_ = all_seen_ && ends;
        }
        for (std::size_t op = 0; op < graph.ops().size(); ++op) {
            for (const TensorId t : graph.ops()[op].reads) {
                reads_[op] |= one(at(t));
            }
            once_ |= graph.ops()[op].once ? one(op) : 0;
            fastest_.push_back(fastest(graph.ops()[op]).time);
            runs_.push_back(runs_of(static_cast<OpId>(op)));
        }
    }

    // The cost of a state is the time spent plus `greed` times the time of the remaining ops.
    PebbleGame play(double greed, std::int64_t most_states, const Progress& progress) {
        nodes_.clear();
        known_.clear();
        queue_ = {};
        greed_ = greed;
        if (bytes(inputs_) > capacity_) {
            return {std::nullopt, true, 0};
        }
        reach({0, inputs_, 0}, 0, -1, 0, {});
        for (std::int64_t seen = 1; !queue_.empty(); ++seen) {
            const std::int32_t id = queue_.top().node;
            queue_.pop();
            const State state = nodes_[at(id)].state;
            if (state.ran == done()) {
                return {steps_to(id), false, states()};
            }
            if (states() > most_states || (seen % 1024 == 0 && progress.tick(0))) {
                return {std::nullopt, false, states()};
            }
            if (known_.at(state) == id) { // and not reached faster since
                expand(id);
            }
        }
        return {std::nullopt, all_seen_, states()};
    }

  private:
    struct Entry {
        Seconds estimate;
        std::int32_t node;

        bool operator<(const Entry& other) const { // the queue's top is its largest
            return estimate != other.estimate ? estimate > other.estimate : node < other.node;
        }
    };

    std::int64_t states() const { return static_cast<std::int64_t>(nodes_.size()); }
    Mask done() const { return graph_.ops().size() == most_pebbles ? ~Mask{0} : one(graph_.ops().size()) - 1; }

    Bytes bytes(Mask tensors) const {
        Bytes sum = 0;
        each_of(tensors, [&](std::size_t t) { sum += graph_.tensors()[t].bytes; });
        return sum;
    }

    // All undominated ways: no other is as fast and needs as little.
    std::vector<WayToRun> runs_of(OpId id) const {
        const Op& op = graph_.op(id);
        std::vector<WayToRun> runs;
        for (const bool skip : {false, true}) {
            if (skip && op.tape.empty()) {
                continue;
            }
            std::vector<WayToRun> all;
            for (std::size_t c = 0; c < op.choices.size(); ++c) {
                const auto choice = static_cast<std::int32_t>(c);
                WayToRun run{{Verb::run, skip, id, choice, -1}, 0, workspace(op, choice, skip), op.choices[c].time};
                for (const TensorId t : op.writes) {
                    run.writes |= skips(graph_, run.step, t) ? 0 : one(at(t));
                }
                run.bytes += bytes(run.writes);
                all.push_back(run);
            }
            std::ranges::stable_sort(all, {}, [](const WayToRun& run) { return std::pair(run.bytes, run.time); });
            Seconds best = std::numeric_limits<Seconds>::infinity();
            for (const WayToRun& run : all) {
                if (run.time < best) {
                    best = run.time;
                    runs.push_back(run);
                }
            }
        }
        return runs;
    }

    void expand(std::int32_t id) {
        const State state = nodes_[at(id)].state;
        const Mask runnable = done() & ~(state.ran & once_);
        Mask useful = 0; // tensors that some op may still read
        each_of(runnable, [&](std::size_t op) { useful |= reads_[op]; });
        each_of(runnable, [&](std::size_t op) {
            for (const WayToRun& run : runs_[op]) {
                const bool again = (state.ran & one(op)) != 0;
                if ((reads_[op] & ~state.device) == 0 && (!again || (run.writes & useful & ~state.device) != 0)) {
                    const State after{state.ran | one(op), run.writes, state.host};
                    take(id, after, useful, reads_[op], run.bytes, run.time, run.step);
                }
            }
        });
        const Bytes on_host = bytes(state.host);
        each_of(movable_ & useful & (state.device ^ state.host), [&](std::size_t t) {
            const Bytes size = graph_.tensors()[t].bytes;
            Step step;
            step.id = static_cast<TensorId>(t);
            if ((state.host & one(t)) == 0) {
                if (!host_memory_ || on_host + size <= *host_memory_) {
                    step.verb = Verb::offload;
                    reach({state.ran, state.device, state.host | one(t)}, out_[t], id, 0, step);
                }
            } else {
                step.verb = Verb::prefetch;
                take(id, {state.ran, one(t), state.host}, useful, 0, size, in_[t], step);
            }
        });
    }

    // A step that takes memory, after dropping each minimal set of tensors that makes room for it: dropping more, or
    // earlier, gains nothing. `after.device` has only what the step makes.
    void take(std::int32_t id, const State& after, Mask useful, Mask locked, Bytes needed, Seconds time,
              const Step& step) {
        const Mask here = nodes_[at(id)].state.device;
        const Mask dropped = here & (after.device | (~useful & ~locked));
        std::vector<std::size_t> loose;
        Bytes left = 0;
        each_of(here & ~dropped & ~locked, [&](std::size_t t) {
            if (graph_.tensors()[t].bytes > 0) {
                loose.push_back(t);
                left += graph_.tensors()[t].bytes;
            }
        });
        std::ranges::sort(loose, {}, [&](std::size_t t) { return -graph_.tensors()[t].bytes; });
        std::size_t ways = 0;
        const Bytes missing = needed + bytes(here & ~dropped) - capacity_;
        drop(loose, 0, left, missing, dropped, ways,
             [&](Mask gone) { reach({after.ran, (here & ~gone) | after.device, after.host}, time, id, gone, step); });
    }

    // Largest first, so each set that suffices is a least one: without its last and smallest it would not. `left`: the
    // bytes of what is loose from there on.
    template <class Each> void drop(const std::vector<std::size_t>& loose, std::size_t from, Bytes left, Bytes missing,
                                    Mask gone, std::size_t& ways, const Each& each) {
        if (missing <= 0) {
            ++ways;
            each(gone);
            return;
        }
        for (std::size_t k = from; left >= missing; ++k) {
            if (ways >= most_ways) {
                all_seen_ = false;
                return;
            }
            const Bytes size = graph_.tensors()[loose[k]].bytes;
            left -= size;
            drop(loose, k + 1, left, missing - size, gone | one(loose[k]), ways, each);
        }
    }

    void reach(const State& state, Seconds time, std::int32_t parent, Mask freed, const Step& step) {
        const Seconds spent = parent < 0 ? 0 : nodes_[at(parent)].spent + time;
        const auto id = static_cast<std::int32_t>(nodes_.size());
        const auto [place, fresh] = known_.try_emplace(state, id);
        if (!fresh) {
            if (nodes_[at(place->second)].spent <= spent) {
                return;
            }
            place->second = id;
        }
        nodes_.push_back({state, spent, parent, freed, step});
        Seconds ahead = 0;
        each_of(done() & ~state.ran, [&](std::size_t op) { ahead += fastest_[op]; });
        queue_.push({spent + greed_ * ahead, id});
    }

    StepList steps_to(std::int32_t id) const {
        std::vector<std::int32_t> path;
        for (; nodes_[at(id)].parent >= 0; id = nodes_[at(id)].parent) {
            path.push_back(id);
        }
        StepList list;
        for (auto node = path.rbegin(); node != path.rend(); ++node) {
            each_of(nodes_[at(*node)].freed, [&](std::size_t t) { list.free(static_cast<TensorId>(t)); });
            list.steps.push_back(nodes_[at(*node)].step);
        }
        return list;
    }

    const Graph& graph_;
    Bytes capacity_;
    std::optional<Bytes> host_memory_;
    std::vector<Mask> reads_; // by op, as the next two
    std::vector<Seconds> fastest_;
    std::vector<std::vector<WayToRun>> runs_;
    std::vector<Seconds> out_, in_; // by tensor
    Mask inputs_ = 0, movable_ = 0, once_ = 0;
    bool all_seen_ = true;
    double greed_ = 1;
    std::vector<Position> nodes_;
    std::unordered_map<State, std::int32_t, StateHash> known_;
    std::priority_queue<Entry> queue_;
};

} // namespace

PebbleGame play_pebbles(const Graph& graph, const Device& device, std::int64_t most_states, const Progress& progress) {
    if (graph.ops().size() > most_pebbles || graph.tensors().size() > most_pebbles) {
        return {};
    }
    Game game(graph, device);
    PebbleGame found = game.play(1, most_states, progress);
    if (!found.steps && !found.proven && !progress.tick(0)) {
        const std::int64_t before = found.states;
        found = game.play(16, most_states, progress);
        found.states += before;
    }
    return found;
}

} // namespace memsched
