#include "memsched/bounds.h"

#include "memsched/lifetimes.h"

#include <algorithm>
#include <limits>
#include <vector>

// Theorem 2 on a graph, without a linear program. Forget which byte is which. In time order, op j may start once
// usage_j - M bytes have left, and bytes leave at the speed of the link from the moment they are written: running every
// op as early as that allows gives its earliest start s_j, and the moment t_out when the largest excess D has left.
// The same in reversed time (bytes arrive no later than their next reader) gives r_j, the least time between the end of
// op j and the end of the step, and t_in. Every schedule takes at least s_j + u_j + r_j for each j, and t_out + t_in,
// since at the peak D bytes have left and have yet to come back. The maximum of these is reached by running early what
// starts before t_out and late what ends after makespan - t_in, so it is the optimum of the relaxed problem.

namespace memsched {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

struct Work {
    std::vector<Seconds> time;
    std::vector<Bytes> excess;    // that must be away while the op runs, <= 0: none
    std::vector<Bytes> away_most; // what can be away while it runs: held, not touched by it
};

// Reversed in time, or not, the walk is the same.
struct Direction {
    std::vector<Seconds> earliest; // start of each op
    Seconds drained = 0;           // the largest excess has left
};

Direction walk(const Work& work, const std::vector<Bytes>& available_before, Bytes available_at_start, Bytes peak_excess,
               Bandwidth bandwidth) {
    Direction d;
    d.earliest.resize(work.time.size());
    Seconds now = 0;
    double copied = 0;
    double available = static_cast<double>(available_at_start);
    const auto peak = static_cast<double>(std::max<Bytes>(peak_excess, 0));
    d.drained = peak > 0 ? never : 0;
    const auto advance = [&](Seconds until) {
        const double most = until > now ? std::min(available, copied + (until - now) * bandwidth) : copied;
        if (d.drained == never && most >= peak) {
            d.drained = now + std::max(0.0, (peak - copied) / bandwidth);
        }
        copied = std::max(copied, most);
        now = until;
    };
    for (std::size_t j = 0; j < work.time.size(); ++j) {
        available += static_cast<double>(available_before[j]);
        const auto excess = static_cast<double>(work.excess[j]);
        if (excess > copied) {
            if (work.excess[j] > work.away_most[j] || excess > available || bandwidth == 0) {
                d.earliest.assign(work.time.size(), never);
                d.drained = never;
                return d;
            }
            const Seconds ready = now + (excess - copied) / bandwidth;
            advance(ready);
            copied = std::max(copied, excess); // against rounding
            if (d.drained == never && copied >= peak) {
                d.drained = ready;
            }
        }
        d.earliest[j] = now;
        advance(now + work.time[j]);
    }
    return d;
}

Work reversed(Work work) {
    std::reverse(work.time.begin(), work.time.end());
    std::reverse(work.excess.begin(), work.excess.end());
    std::reverse(work.away_most.begin(), work.away_most.end());
    return work;
}

Seconds fastest(const Op& op) {
    Seconds time = op.choices[0].time;
    for (const Choice& choice : op.choices) {
        time = std::min(time, choice.time);
    }
    return time;
}

// What may travel, by the op from whose end (forwards) or start (backwards) on it may: before_op[j] for the walk in time
// order, after_op[j] for the reversed one.
struct Supply {
    Bytes at_start = 0;
    std::vector<Bytes> forwards;  // available before op j starts
    std::vector<Bytes> backwards; // the same, with ops counted from the end
    std::vector<Bytes> away_most;
};

Supply supply(const Graph& graph, const Lifetimes& lifetimes) {
    const std::size_t n = graph.ops().size();
    Supply s{0, std::vector<Bytes>(n + 1, 0), std::vector<Bytes>(n + 1, 0), std::vector<Bytes>(n, 0)};
    std::vector<OpId> previous(lifetimes.birth); // last op that touched a tensor
    std::vector<OpId> arrival(previous.size(), -1); // last op before which a tensor may have been away
    for (std::size_t j = 0; j < n; ++j) {
        Bytes touched = lifetimes.need[j];
        s.away_most[j] = lifetimes.usage[j] - touched;
        for (const TensorId t : graph.ops()[j].reads) {
            const auto id = static_cast<std::size_t>(t);
            if (static_cast<OpId>(j) > previous[id] + 1) {
                arrival[id] = static_cast<OpId>(j);
            }
            previous[id] = static_cast<OpId>(j);
        }
    }
    for (std::size_t t = 0; t < arrival.size(); ++t) {
        if (arrival[t] < 0) {
            continue; // never away while an op runs
        }
        const Bytes bytes = graph.tensors()[t].bytes;
        if (lifetimes.birth[t] < 0) {
            s.at_start += bytes;
        } else {
            s.forwards[static_cast<std::size_t>(lifetimes.birth[t]) + 1] += bytes;
        }
        s.backwards[n - static_cast<std::size_t>(arrival[t])] += bytes;
    }
    return s;
}

} // namespace

Bounds lower_bounds(const Graph& graph, const Device& device, Bytes budget) {
    const Lifetimes lifetimes(graph);
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    const std::size_t n = graph.ops().size();
    Bounds bounds;
    Work work{std::vector<Seconds>(n), std::vector<Bytes>(n), {}};
    Bytes peak_excess = 0;
    for (std::size_t j = 0; j < n; ++j) {
        work.time[j] = fastest(graph.ops()[j]);
        work.excess[j] = lifetimes.usage[j] - capacity;
        bounds.compute += work.time[j];
        peak_excess = std::max(peak_excess, work.excess[j]);
    }
    bounds.transfer = bounds.fractional = bounds.compute;
    if (peak_excess <= 0) {
        bounds.transfer = 0;
        return bounds;
    }
    const Supply s = supply(graph, lifetimes);
    work.away_most = s.away_most;
    const auto excess = static_cast<double>(peak_excess);
    bounds.transfer = excess / device.d2h + excess / device.h2d;
    const Direction out = walk(work, s.forwards, s.at_start, peak_excess, device.d2h);
    const Direction in = walk(reversed(work), s.backwards, 0, peak_excess, device.h2d);
    bounds.fractional = std::max(bounds.compute, out.drained + in.drained);
    for (std::size_t j = 0; j < n; ++j) {
        bounds.fractional = std::max(bounds.fractional, out.earliest[j] + work.time[j] + in.earliest[n - 1 - j]);
    }
    return bounds;
}

} // namespace memsched
