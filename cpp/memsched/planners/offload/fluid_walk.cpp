#include "memsched/planners/offload/fluid_walk.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace memsched {

FluidWalk::FluidWalk(const FluidModel& model)
    : model_(model), stages_(at(model.stages())), states_(stages_.size() + 1, model.initial()) {
    std::iota(stages_.begin(), stages_.end(), std::size_t{0});
}

double FluidWalk::evaluate(std::size_t first_changed) {
    valid_ = std::min(valid_, first_changed);
    const std::size_t stages = current_.size();
    for (; valid_ < stages; ++valid_) {
        FluidState kept{}, gone{};
        if (!model_.stage(static_cast<int>(valid_)).advance(states_[valid_], kept, gone)) {
            return std::numeric_limits<double>::infinity();
        }
        states_[valid_ + 1] = current_[valid_] ? gone : kept;
    }
    return model_.makespan(states_[stages]);
}

double FluidWalk::run(const std::vector<std::uint8_t>& from, double makespan, double target, std::size_t evaluations) {
    current_ = best_ = from;
    valid_ = 0;
    double best = makespan;
    walk_.restart(makespan);
    for (std::size_t move = 0; move < evaluations && best > target; ++move) {
        const auto flipped = move_.apply(current_, stages_, random_);
        const std::size_t first = *std::ranges::min_element(flipped);
        const double found = evaluate(first);
        if (!walk_.accept(found)) {
            move_.undo(current_);
            valid_ = std::min(valid_, first);
        } else if (found < best) {
            best = found;
            best_ = current_;
        }
    }
    return best;
}

} // namespace memsched
