#include "memsched/planners/selective/polish.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr std::int64_t most_steps = 500; // a longer list takes too long to simulate so often, and gained nothing
constexpr std::uint64_t doublings = 5;   // a step moves by 1, 2, .. or 16 places

} // namespace

void Polishing::run(const StepList& plan, Seconds makespan, std::int64_t moves, std::mt19937_64& random,
                    const std::function<bool()>& stopped) {
    if (stuck_ || makespan < now_) { // another way from the plan may lead farther
        list_ = plan;
        now_ = makespan;
    }
    const auto size = static_cast<std::int64_t>(list_.steps.size());
    if (size == 0 || size > most_steps || !list_.after.empty() || list_.contiguous()) { // these name steps by place
        return;
    }
    const Seconds before = now_;
    StepList next;
    for (std::int64_t left = moves + size; left > 0 && !stopped(); --left) {
        const auto from = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
        const auto distance = std::int64_t{1} << (random() % doublings);
        const bool later = random() % 2 == 0;
        const std::int64_t to = std::clamp(later ? from + distance : from - distance, std::int64_t{0}, size - 1);
        if (list_.steps[static_cast<std::size_t>(from)].verb == Verb::run || from == to) {
            continue;
        }
        next = list_;
        const auto begin = next.steps.begin();
        if (from < to) {
            std::rotate(begin + from, begin + from + 1, begin + to + 1);
        } else {
            std::rotate(begin + to, begin + from, begin + from + 1);
        }
        ++evaluations_;
        if (const Seconds found = simulator_.makespan(next); found <= now_) {
            now_ = found;
            std::swap(list_, next);
        }
    }
    stuck_ = !(now_ < before);
    if (now_ < best_) {
        best_ = now_;
        steps_ = list_;
    }
}

} // namespace memsched
