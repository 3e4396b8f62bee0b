#include "memsched/planners/selective/polish.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr std::int64_t most_steps = 500; // a longer list takes too long to simulate so often, and gained nothing
constexpr std::uint64_t doublings = 5;   // a step moves by 1, 2, .. or 16 places

} // namespace

std::int64_t polished(Simulator& simulator, StepList& list, Seconds& makespan, std::int64_t moves,
                      std::mt19937_64& random, const std::function<bool()>& stopped) {
    const auto size = static_cast<std::int64_t>(list.steps.size());
    if (size == 0 || size > most_steps || !list.after.empty() || list.contiguous()) { // these name steps by place
        return 0;
    }
    std::int64_t simulated = 0;
    StepList next;
    for (std::int64_t left = moves + size; left > 0 && !stopped(); --left) {
        const auto from = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
        const auto distance = std::int64_t{1} << (random() % doublings);
        const bool later = random() % 2 == 0;
        const std::int64_t to = std::clamp(later ? from + distance : from - distance, std::int64_t{0}, size - 1);
        if (list.steps[static_cast<std::size_t>(from)].verb == Verb::run || from == to) {
            continue;
        }
        next = list;
        const auto begin = next.steps.begin();
        if (from < to) {
            std::rotate(begin + from, begin + from + 1, begin + to + 1);
        } else {
            std::rotate(begin + to, begin + from, begin + from + 1);
        }
        ++simulated;
        if (const Seconds found = simulator.makespan(next); found <= makespan) {
            makespan = found;
            std::swap(list, next);
        }
    }
    return simulated;
}

} // namespace memsched
