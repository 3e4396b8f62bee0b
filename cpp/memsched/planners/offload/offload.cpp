#include "memsched/planners/offload/offload.h"

#include "memsched/planners/offload/set_walk.h"
#include "memsched/planners/offload/step_walk.h"
#include "memsched/support/errors.h"

#include <algorithm>
#include <stdexcept>

namespace memsched {
namespace {

constexpr std::size_t slice = 32;          // moves between two checks of the clock, fewer ..
constexpr std::size_t simulated = 50'000;  // .. if they simulate more ops than this
constexpr std::size_t slices_a_turn = 128; // of one walk before the other gets its turn
constexpr std::size_t turns = 8;           // of both walks, at least, where the moves are limited
constexpr std::size_t patience =
    200; // moves without progress, per movable tensor, before the set walk starts elsewhere

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
          random_(options.seed), sets_(graph, builder_, capacity_, simulator_, random_) {
        best_.makespan = Simulator::illegal;
    }

    void start_from(const std::vector<std::uint8_t>& travels) {
        const Seconds makespan = sets_.evaluate(travels);
        ++best_.evaluations;
        if (makespan < set_makespan_) {
            set_ = travels;
            set_makespan_ = makespan;
        }
    }

    bool run() {
        if (set_makespan_ == Simulator::illegal) {
            return false;
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
                restart_elsewhere();
            }
        }
        return true;
    }

    OffloadSolution solution() { return std::move(best_); }

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

    void restart_elsewhere() {
        sets_.perturb(set_, set_makespan_);
        adopt_set();
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
    std::vector<std::uint8_t> set_; // the best set so far
    Seconds set_makespan_ = Simulator::illegal;
    OffloadSolution best_;
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
    if (!search.run()) {
        throw InfeasibleError("no offload set fits in " + std::to_string(budget) + " bytes", min_memory(graph));
    }
    return search.solution();
}

} // namespace memsched
