// One half of a chain's step, from its start to its tightest op, as a search over sets of tensors that travel whole.
// Called by bench/whole_tensors.py, which says what the numbers mean and why the result is a lower bound.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using Set = std::uint32_t; // one bit a tensor

struct State {
    double link;    // when the last copy of the set has ended
    double compute; // when the last op that the set allows has ended
};

// Keeps what no other state of the set beats in both times.
void insert(std::vector<State>& states, State state) {
    for (const State& other : states) {
        if (other.link <= state.link && other.compute <= state.compute)
            return;
    }
    std::erase_if(states,
                  [&](const State& other) { return state.link <= other.link && state.compute <= other.compute; });
    states.push_back(state);
}

} // namespace

extern "C" {

// Fills reached[set], 2^tensors numbers, with the least time at which the copies of a set (or of more) have ended and
// all ops but the tightest have ended; `tail` seconds of compute follow the last of them. Infinite above `limit`, the
// makespan that a plan may have at most; `rest` is the compute time of the other half.
void half(int tensors, const double* seconds, const std::int64_t* bytes, const std::int32_t* ready, int ops,
          const double* time, const std::int64_t* excess, const Set* touched, double tail, double rest,
          std::int64_t tightest, double bandwidth, double limit, double* reached) {
    const std::size_t sets = std::size_t{1} << tensors;
    std::vector<double> until(static_cast<std::size_t>(ops) + 1, 0.0);
    for (int i = 0; i < ops; ++i)
        until[i + 1] = until[i] + time[i];
    const auto size = [&](Set set) {
        std::int64_t total = 0;
        for (; set != 0; set &= set - 1)
            total += bytes[__builtin_ctz(set)];
        return total;
    };
    const auto first_blocked = [&](Set set, int op) {
        while (op < ops && size(set & ~touched[op]) >= excess[op])
            ++op;
        return op;
    };

    std::fill(reached, reached + sets, std::numeric_limits<double>::infinity());
    std::vector<std::vector<State>> states(sets);
    states[0].push_back({0.0, until[first_blocked(0, 0)]});
    for (std::size_t set = 0; set < sets; ++set) { // a subset comes before what contains it
        if (states[set].empty())
            continue;
        const Set copied = static_cast<Set>(set);
        const std::int64_t away = size(copied);
        const int blocked = first_blocked(copied, 0);
        if (blocked == ops) {
            for (const State& state : states[set]) {
                reached[set] = std::min(reached[set], std::max(state.link, state.compute + tail));
            }
        }
        for (int t = 0; t < tensors; ++t) {
            if ((copied >> t & 1) != 0 || ready[t] >= blocked)
                continue;
            const Set more = copied | Set{1} << t;
            const int next = first_blocked(more, blocked);
            const std::int64_t all = away + bytes[t];
            const double still =
                double(std::max<std::int64_t>(0, tightest - all) + std::max(all, tightest)) / bandwidth;
            for (const State& state : states[set]) {
                // Ops before `blocked` ran one after the other since the last wait for a copy, which is over by
                // state.link.
                const double made = ready[t] < 0 ? 0.0 : state.compute - (until[blocked] - until[ready[t] + 1]);
                const double link = std::max(state.link, made) + seconds[t];
                const double resumed = next > blocked ? std::max(state.compute, link) : state.compute;
                const State later{link, resumed + until[next] - until[blocked]};
                const double waited = next < ops ? std::max(later.compute, link) : later.compute;
                if (link + still > limit || waited + until[ops] - until[next] + tail + rest > limit)
                    continue;
                insert(states[more], later);
            }
        }
        std::vector<State>().swap(states[set]);
    }
    for (int t = 0; t < tensors; ++t) { // a set is copied as soon as one that contains it is
        for (std::size_t set = 0; set < sets; ++set) {
            if ((set >> t & 1) == 0)
                reached[set] = std::min(reached[set], reached[set | std::size_t{1} << t]);
        }
    }
}
}
