#include "memsched/planners/offload.h"

#include "memsched/errors.h"
#include "memsched/simulate.h"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>

namespace memsched {
namespace {

constexpr std::size_t memory_of_walk = 64; // late acceptance: a move may be as bad as the walk was so many moves ago

class Walk {
  public:
    Walk(const Graph& graph, const Device& device, Bytes budget, const OffloadOptions& options, const Progress& progress)
        : builder_(graph, std::min(budget, device.memory) - graph.resident()), simulator_(graph, device, budget),
          options_(options), progress_(progress), random_(options.seed) {
        best_.makespan = Simulator::illegal;
    }

    void start_from(std::vector<std::uint8_t> travels) {
        const Seconds makespan = evaluate(travels);
        if (makespan < best_.makespan) {
            keep(travels, makespan);
        }
    }

    bool good_enough() const { return best_.makespan <= options_.lower_bound * (1 + options_.gap) * (1 + 1e-12); }

    void run() {
        const std::vector<TensorId>& movable = builder_.movable();
        if (movable.empty()) {
            return;
        }
        std::vector<std::uint8_t> current = best_travels_;
        Seconds current_makespan = best_.makespan;
        std::vector<Seconds> past(memory_of_walk, current_makespan);
        for (std::uint64_t move = 0; !good_enough(); ++move) {
            if (progress_.tick(0)) {
                return;
            }
            const std::size_t flips = propose(current);
            const Seconds makespan = evaluate(current);
            Seconds& old = past[move % memory_of_walk];
            if (makespan <= current_makespan || makespan <= old) {
                current_makespan = makespan;
                if (makespan < best_.makespan) {
                    keep(current, makespan);
                }
            } else {
                undo(current, flips);
            }
            old = current_makespan;
        }
    }

    OffloadSolution solution() {
        if (!builder_.build(best_travels_, {}, best_.steps)) {
            throw std::logic_error("the best set no longer builds");
        }
        return std::move(best_);
    }

    bool found() const { return best_.makespan < Simulator::illegal; }

  private:
    Seconds evaluate(const std::vector<std::uint8_t>& travels) {
        ++best_.evaluations;
        return builder_.build(travels, {}, list_) ? simulator_.makespan(list_) : Simulator::illegal;
    }

    void keep(const std::vector<std::uint8_t>& travels, Seconds makespan) {
        best_travels_ = travels;
        best_.makespan = makespan;
    }

    // Flips one to three tensors of `current`: mostly one that travels against one that stays.
    std::size_t propose(std::vector<std::uint8_t>& current) {
        const std::vector<TensorId>& movable = builder_.movable();
        std::uniform_int_distribution<std::size_t> any(0, movable.size() - 1);
        const std::uint64_t kind = random_() % 8;
        const std::size_t flips = kind < 2 ? 1 : kind < 7 ? 2 : 3;
        for (std::size_t f = 0; f < flips; ++f) {
            auto t = static_cast<std::size_t>(movable[any(random_)]);
            for (int tries = 0; f == 1 && tries < 16 && current[t] != current[flipped_[0]]; ++tries) {
                t = static_cast<std::size_t>(movable[any(random_)]); // flipped_[0] has its new value already
            }
            current[t] ^= 1U;
            flipped_[f] = t;
        }
        return flips;
    }

    void undo(std::vector<std::uint8_t>& current, std::size_t flips) {
        while (flips-- > 0) {
            current[flipped_[flips]] ^= 1U;
        }
    }

    OffloadSteps builder_;
    Simulator simulator_;
    OffloadOptions options_;
    const Progress& progress_;
    std::mt19937_64 random_;
    StepList list_;
    std::array<std::size_t, 3> flipped_{};
    std::vector<std::uint8_t> best_travels_;
    OffloadSolution best_;
};

} // namespace

OffloadSolution offload_search(const Graph& graph, const Device& device, Bytes budget,
                               std::span<const std::uint8_t> starts, const OffloadOptions& options,
                               const Progress& progress) {
    const std::size_t width = graph.tensors().size();
    if (width == 0 || starts.size() % width != 0) {
        throw std::invalid_argument("starts must hold one flag for each of the " + std::to_string(width) + " tensors");
    }
    Walk walk(graph, device, budget, options, progress);
    for (std::size_t at = 0; at < starts.size(); at += width) {
        walk.start_from({starts.begin() + static_cast<std::ptrdiff_t>(at),
                         starts.begin() + static_cast<std::ptrdiff_t>(at + width)});
    }
    if (!walk.found()) {
        throw InfeasibleError("no offload set fits in " + std::to_string(budget) + " bytes", min_memory(graph));
    }
    walk.run();
    return walk.solution();
}

} // namespace memsched
