#include "memsched/planners/offload/offload.h"

#include "memsched/planners/offload/flip_move.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"
#include "memsched/support/late_acceptance.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace memsched {
namespace {

constexpr std::size_t slice = 32;            // moves between two checks of the clock, fewer ..
constexpr std::size_t simulated = 50'000;    // .. if they simulate more ops than this
constexpr std::size_t slices_a_turn = 128;   // of one walk before the other gets its turn
constexpr std::size_t turns = 8;             // of both walks, at least, where the moves are limited
constexpr std::size_t patience = 200;        // moves a movable tensor without progress until another start
constexpr double price_of_everything = 1e-3; // moving all tensors costs as much as this share of the makespan
constexpr std::size_t memory_of_walk = 64;   // moves of late acceptance

using Set = std::vector<std::uint8_t>; // one flag per tensor: whether it is offloaded

// Local search over offload sets, by the simulated makespan of the no-wait schedule of each set. Among sets that are
// about equally fast it prefers those that move less; otherwise, on plateaus, the walk would drift towards offloading
// half of all tensors.
class SetWalk {
  public:
    SetWalk(const Graph& graph, SetBuilder& builder, Bytes capacity, Simulator& simulator, std::mt19937_64& random)
        : graph_(graph), builder_(builder), capacity_(capacity), simulator_(simulator), random_(random) {
        double bytes = 0;
        for (const TensorId t : builder.movable()) {
            bytes += static_cast<double>(graph.tensor(t).bytes);
        }
        price_ = bytes > 0 ? price_of_everything / bytes : 0;
    }

    const Set& best() const { return best_; }
    Seconds makespan() const { return best_makespan_; }

    // Makespan of a set; Simulator::illegal when it does not run.
    Seconds evaluate(const Set& travels) {
        return builder_.build(travels, capacity_, {}, list_) ? simulator_.makespan(list_) : Simulator::illegal;
    }

    void restart(const Set& travels, Seconds makespan) {
        current_ = best_ = travels;
        best_makespan_ = makespan;
        walk_.restart(value(travels, makespan));
    }

    // Restarts a quarter of the flags away from `travels`, or at it when nothing that far away runs.
    void perturb(const Set& travels, Seconds makespan) {
        constexpr int tries = 8;
        for (int attempt = 0; attempt < tries; ++attempt) {
            Set changed = travels;
            for (const TensorId t : builder_.movable()) {
                if (random_() % 4 == 0) {
                    changed[at(t)] ^= 1U;
                }
            }
            if (const Seconds found = evaluate(changed); found < Simulator::illegal) {
                restart(changed, found);
                return;
            }
        }
        restart(travels, makespan);
    }

    // Tries up to `moves` neighbours, fewer if `target` is reached. Whether the best since the restart improved.
    bool run(std::size_t moves, Seconds target) {
        const Seconds before = best_makespan_;
        for (std::size_t move = 0; move < moves && best_makespan_ > target; ++move) {
            move_.apply(current_, builder_.movable(), random_);
            const Seconds found = evaluate(current_);
            if (!walk_.accept(value(current_, found))) {
                move_.undo(current_);
            } else if (found < best_makespan_) {
                best_makespan_ = found;
                best_ = current_;
            }
        }
        return best_makespan_ < before;
    }

  private:
    // What the walk descends on.
    double value(const Set& travels, Seconds makespan) const {
        double moved = 0;
        for (const TensorId t : builder_.movable()) {
            moved += travels[at(t)] ? static_cast<double>(graph_.tensor(t).bytes) : 0;
        }
        return makespan * (1 + price_ * moved);
    }

    const Graph& graph_;
    SetBuilder& builder_;
    Bytes capacity_;
    Simulator& simulator_;
    std::mt19937_64& random_;
    StepList list_;
    FlipMove move_;
    LateAcceptance walk_{memory_of_walk};
    Set current_, best_;
    Seconds best_makespan_ = Simulator::illegal;
    double price_ = 0; // of a byte that travels, in makespans
};

bool is_transfer(const Step& step) { return step.verb == Verb::offload || step.verb == Verb::prefetch; }

// Moves the step at `from` to `to`, shifting those between.
void shift(std::vector<Step>& steps, std::size_t from, std::size_t to) {
    const auto at = [&](std::size_t i) { return steps.begin() + static_cast<std::ptrdiff_t>(i); };
    if (from < to) {
        std::rotate(at(from), at(from + 1), at(to + 1));
    } else {
        std::rotate(at(to), at(from), at(from + 1));
    }
}

// Local search over the positions of transfers in a list of steps: their order and the runs that they wait for. It may
// leave the class of schedules in which every prefetch comes after every offload.
class StepWalk {
  public:
    StepWalk(Simulator& simulator, std::mt19937_64& random) : simulator_(simulator), random_(random) {}

    const StepList& best() const { return best_; }
    Seconds makespan() const { return best_makespan_; }

    // The list must be legal and have no `after`.
    void restart(const StepList& list, Seconds makespan) {
        current_ = best_ = list;
        best_makespan_ = makespan;
        walk_.restart(makespan);
        movable_ = std::ranges::any_of(list.steps, is_transfer);
    }

    // As SetWalk::run.
    bool run(std::size_t moves, Seconds target) {
        const Seconds before = best_makespan_;
        for (std::size_t move = 0; movable_ && move < moves && best_makespan_ > target; ++move) {
            trial_.steps = current_.steps;
            move_transfer(trial_.steps);
            const Seconds found = simulator_.makespan(trial_);
            if (walk_.accept(found)) {
                std::swap(current_.steps, trial_.steps);
                if (found < best_makespan_) {
                    best_makespan_ = found;
                    best_.steps = current_.steps;
                }
            }
        }
        return best_makespan_ < before;
    }

  private:
    void move_transfer(std::vector<Step>& steps) {
        std::size_t from = random_() % steps.size();
        while (!is_transfer(steps[from])) {
            from = random_() % steps.size();
        }
        const std::size_t reach = 1 + random_() % (std::uint64_t{1} << (random_() % 7));
        const bool later = random_() % 2 == 0;
        const std::size_t to = later ? std::min(steps.size() - 1, from + reach) : from - std::min(from, reach);
        const Step moved = steps[from];
        shift(steps, from, to);
        if (moved.verb == Verb::offload && later) { // its free must stay behind it
            for (std::size_t k = from; k < to; ++k) {
                if (steps[k].verb == Verb::free && steps[k].id == moved.id) {
                    shift(steps, k, to);
                    return;
                }
            }
        }
    }

    Simulator& simulator_;
    std::mt19937_64& random_;
    LateAcceptance walk_{memory_of_walk};
    StepList current_, trial_, best_;
    bool movable_ = false; // there is a transfer
    Seconds best_makespan_ = Simulator::illegal;
};

// Two walks that alternate: one over sets, and one over the positions of the transfers of the best set found by the
// first.
class OffloadSearch {
  public:
    OffloadSearch(const Graph& graph, const Device& device, Bytes budget, const OffloadOptions& options,
                  const Progress& progress)
        : builder_(graph), capacity_(std::min(budget, device.memory) - graph.resident()),
          simulator_(graph, device, budget), target_(options.lower_bound * (1 + options.gap) * (1 + 1e-12)),
          most_(options.most), slices_(std::clamp<std::uint64_t>(options.most / (turns * slice), 1, slices_a_turn)),
          part_(std::clamp<std::size_t>(simulated / (graph.ops().size() + 1), 1, slice)), progress_(progress),
          random_(options.seed), sets_(graph, builder_, capacity_, simulator_, random_) {}

    void start_from(const Set& travels) {
        const Seconds makespan = sets_.evaluate(travels);
        ++best_.evaluations;
        if (makespan < set_makespan_) {
            set_ = travels;
            set_makespan_ = makespan;
        }
    }

    // None if no set runs.
    std::optional<OffloadSolution> run() {
        if (set_makespan_ == Simulator::illegal) {
            return std::nullopt;
        }
        sets_.restart(set_, set_makespan_);
        adopt_set();
        std::size_t idle_turns = 0;
        stopped_ = most_ == 0;
        while (!builder_.movable().empty() && best_.makespan > target_ && !stopped_) {
            const bool progress = turn(sets_);
            idle_turns = progress ? 0 : idle_turns + 1;
            if (sets_.makespan() < set_makespan_ || (progress && sets_.makespan() < steps_.makespan())) {
                adopt_set();
            }
            if (best_.makespan > target_ && !stopped_) {
                turn(steps_);
            }
            keep_steps();
            if (idle_turns * slices_ * slice > patience * builder_.movable().size()) {
                idle_turns = 0;
                sets_.perturb(set_, set_makespan_);
                adopt_set();
            }
        }
        return std::move(best_);
    }

  private:
    template <class Walk> bool turn(Walk& walk) {
        bool better = false;
        for (std::size_t s = 0; s < slices_ && walk.makespan() > target_ && !stopped_; ++s) {
            for (std::size_t done = 0; done < slice && !stopped_; done += part_) {
                better |= walk.run(std::min(part_, slice - done), target_);
                stopped_ = progress_.tick(0);
            }
            best_.evaluations += slice;
            moves_ += slice;
            stopped_ = stopped_ || moves_ >= most_;
        }
        return better;
    }

    // The transfers of the set walk's best set become the step walk's subject.
    void adopt_set() {
        StepList list;
        if (!builder_.build(sets_.best(), capacity_, {}, list)) {
            throw std::logic_error("a set that ran no longer builds");
        }
        steps_.restart(list, sets_.makespan());
        if (sets_.makespan() < set_makespan_) {
            set_ = sets_.best();
            set_makespan_ = sets_.makespan();
        }
        keep_steps();
    }

    void keep_steps() {
        if (steps_.makespan() < best_.makespan) {
            best_.makespan = steps_.makespan();
            best_.steps = steps_.best();
        }
    }

    SetBuilder builder_;
    Bytes capacity_;
    Simulator simulator_;
    Seconds target_;
    std::uint64_t most_, moves_ = 0;
    std::size_t slices_; // of one walk before the other has its turn
    std::size_t part_;   // of a slice
    const Progress& progress_;
    std::mt19937_64 random_;
    SetWalk sets_;
    StepWalk steps_{simulator_, random_};
    Set set_; // the best set so far
    Seconds set_makespan_ = Simulator::illegal;
    OffloadSolution best_{{}, Simulator::illegal};
    bool stopped_ = false;
};

} // namespace

OffloadSolution offload_search(const Graph& graph, const Device& device, Bytes budget,
                               std::span<const std::uint8_t> starts, const OffloadOptions& options,
                               const Progress& progress) {
    const std::size_t width = graph.tensors().size();
    if (width == 0 || starts.size() % width != 0) {
        throw std::invalid_argument("starts must hold one flag for each of the " + std::to_string(width) + " tensors");
    }
    OffloadSearch search(graph, device, budget, options, progress);
    for (std::size_t at = 0; at < starts.size(); at += width) {
        search.start_from({starts.begin() + static_cast<std::ptrdiff_t>(at),
                           starts.begin() + static_cast<std::ptrdiff_t>(at + width)});
    }
    if (auto found = search.run()) {
        return std::move(*found);
    }
    throw InfeasibleError("no offload set fits in " + std::to_string(budget) + " bytes", min_memory(graph));
}

} // namespace memsched
