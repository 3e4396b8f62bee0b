#include "memsched/planners/fluid_walk.h"

#include <algorithm>
#include <limits>

namespace memsched {
namespace {

constexpr std::size_t memory_of_walk = 256; // late acceptance: a move may be as bad as the walk was so many moves ago

} // namespace

FluidWalk::FluidWalk(const FluidModel& model)
    : model_(model), states_(static_cast<std::size_t>(model.stages()) + 1, model.initial()) {}

double FluidWalk::evaluate(std::size_t first_changed) {
    valid_ = std::min(valid_, first_changed);
    const std::size_t stages = current_.size();
    for (; valid_ < stages; ++valid_) {
        FluidState kept{}, gone{};
        if (!model_.advance(static_cast<int>(valid_), states_[valid_], kept, gone)) {
            return std::numeric_limits<double>::infinity();
        }
        states_[valid_ + 1] = current_[valid_] ? gone : kept;
    }
    return model_.compute() + states_[stages].idle + model_.turn_idle(states_[stages]);
}

std::size_t FluidWalk::propose() {
    const std::uint64_t kind = random_() % 8;
    const std::size_t flips = kind < 2 ? 1 : kind < 6 ? 2 : 3;
    for (std::size_t f = 0; f < flips; ++f) {
        std::size_t stage = random_() % current_.size();
        for (int tries = 0; f == 1 && tries < 16 && current_[stage] != current_[flipped_[0]]; ++tries) {
            stage = random_() % current_.size(); // mostly one that travels against one that stays
        }
        current_[stage] ^= 1U;
        flipped_[f] = stage;
    }
    return flips;
}

double FluidWalk::run(const std::vector<std::uint8_t>& from, double makespan, double target, std::size_t evaluations) {
    current_ = best_ = from;
    valid_ = 0;
    double current = makespan, best = makespan;
    std::vector<double> past(memory_of_walk, makespan);
    for (std::size_t move = 0; move < evaluations && best > target; ++move) {
        const std::size_t flips = propose();
        std::size_t first = current_.size();
        for (std::size_t f = 0; f < flips; ++f) {
            first = std::min(first, flipped_[f]);
        }
        const double found = evaluate(first);
        double& old = past[move % memory_of_walk];
        if (found <= current || found <= old) {
            current = found;
            if (found < best) {
                best = found;
                best_ = current_;
            }
        } else {
            for (std::size_t f = flips; f-- > 0;) {
                current_[flipped_[f]] ^= 1U;
            }
            valid_ = std::min(valid_, first);
        }
        old = current;
    }
    return best;
}

} // namespace memsched
