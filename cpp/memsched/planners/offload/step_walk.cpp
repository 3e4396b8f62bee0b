#include "memsched/planners/offload/step_walk.h"

#include <algorithm>

namespace memsched {
namespace {

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

} // namespace

StepWalk::StepWalk(Simulator& simulator, std::mt19937_64& random) : simulator_(simulator), random_(random) {}

void StepWalk::restart(const StepList& list, Seconds makespan) {
    current_ = best_ = list;
    best_makespan_ = makespan;
    walk_.restart(makespan);
    transfers_ = static_cast<std::size_t>(std::count_if(list.steps.begin(), list.steps.end(), is_transfer));
}

void StepWalk::move_transfer(std::vector<Step>& steps) {
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

bool StepWalk::run(std::size_t moves, Seconds target) {
    const Seconds before = best_makespan_;
    if (transfers_ == 0) {
        return false;
    }
    for (std::size_t move = 0; move < moves && best_makespan_ > target; ++move) {
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

} // namespace memsched
