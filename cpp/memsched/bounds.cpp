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

// The walk in one direction of time.
struct Direction {
    std::vector<Seconds> earliest; // start of each op; infinity: never
    Seconds drained = never;       // the largest excess has left
};

// supply(j): bytes that may travel from before op j on.
template <class Supply> Direction walk(const Workload& work, const Supply& supply, double peak, Bandwidth bandwidth) {
    const std::size_t n = work.time.size();
    Direction d{std::vector<Seconds>(n, never), never};
    Seconds now = 0;
    double copied = 0, available = 0;
    for (std::size_t j = 0; j < n; ++j) {
        available += supply(j);
        const double excess = work.excess[j];
        if (excess > copied) {
            if (excess > work.away_most[j] || excess > available || bandwidth == 0) {
                return {std::vector<Seconds>(n, never), never};
            }
            now += (excess - copied) / bandwidth;
            copied = excess;
        }
        if (d.drained == never && copied >= peak) {
            d.drained = now; // at the latest here, at the peak op itself
        }
        d.earliest[j] = now;
        const double sent = work.time[j] > 0 ? std::min(available - copied, work.time[j] * bandwidth) : 0;
        if (d.drained == never && copied + sent >= peak) {
            d.drained = now + (peak - copied) / bandwidth;
        }
        copied += sent;
        now += work.time[j];
    }
    return d;
}

Workload reversed(Workload work) {
    std::reverse(work.time.begin(), work.time.end());
    std::reverse(work.excess.begin(), work.excess.end());
    std::reverse(work.away_most.begin(), work.away_most.end());
    return work;
}

Workload workload(const Graph& graph, Bytes capacity) {
    const Lifetimes lifetimes(graph);
    const std::size_t n = graph.ops().size();
    Workload work{std::vector<Seconds>(n), std::vector<double>(n), std::vector<double>(n),
                  std::vector<double>(n + 1, 0), std::vector<double>(n, 0)};
    // What no op reads may be dropped once it is written, or before the first op.
    double unread = 0;
    std::vector<double> dropped(n, 0);
    for (std::size_t t = 0; t < lifetimes.birth.size(); ++t) {
        if (lifetimes.last_use[t] < 0) {
            const auto bytes = static_cast<double>(graph.tensors()[t].bytes);
            (lifetimes.birth[t] < 0 ? unread : dropped[static_cast<std::size_t>(lifetimes.birth[t])]) += bytes;
        }
    }
    std::vector<OpId> previous(lifetimes.birth);    // last op that touched a tensor
    std::vector<OpId> arrival(previous.size(), -1); // last op before which a tensor may have been away
    for (std::size_t j = 0; j < n; ++j) {
        work.time[j] = fastest(graph.ops()[j]).time;
        work.excess[j] = static_cast<double>(lifetimes.usage[j] - capacity) - unread;
        work.away_most[j] = static_cast<double>(lifetimes.usage[j] - lifetimes.need[j]) - unread;
        unread += dropped[j];
        for (const TensorId t : graph.ops()[j].reads) {
            const auto id = static_cast<std::size_t>(t);
            if (static_cast<OpId>(j) > previous[id] + 1) {
                arrival[id] = static_cast<OpId>(j);
            }
            previous[id] = static_cast<OpId>(j);
        }
    }
    for (std::size_t t = 0; t < arrival.size(); ++t) {
        if (arrival[t] >= 0) { // others are never away while an op runs
            const auto bytes = static_cast<double>(graph.tensors()[t].bytes);
            work.written[static_cast<std::size_t>(lifetimes.birth[t] + 1)] += bytes;
            work.wanted[static_cast<std::size_t>(arrival[t])] += bytes;
        }
    }
    return work;
}

double largest_excess(const Workload& work) {
    return std::max(0.0, *std::max_element(work.excess.begin(), work.excess.end()));
}

Seconds total(const std::vector<Seconds>& times) {
    Seconds sum = 0;
    for (const Seconds time : times) {
        sum += time;
    }
    return sum;
}

} // namespace

Seconds fractional_bound(const Workload& work, Bandwidth d2h, Bandwidth h2d) {
    const std::size_t n = work.time.size();
    const double peak = largest_excess(work);
    const Seconds compute = total(work.time);
    if (peak == 0) {
        return compute;
    }
    const Direction out = walk(work, [&](std::size_t j) { return work.written[j]; }, peak, d2h);
    const auto from_the_end = [&](std::size_t j) { return j == 0 ? 0.0 : work.wanted[n - j]; };
    const Direction in = walk(reversed(work), from_the_end, peak, h2d);
    Seconds bound = std::max(compute, out.drained + in.drained);
    for (std::size_t j = 0; j < n; ++j) {
        bound = std::max(bound, out.earliest[j] + work.time[j] + in.earliest[n - 1 - j]);
    }
    return bound;
}

Bounds lower_bounds(const Graph& graph, const Device& device, Bytes budget) {
    const Workload work = workload(graph, std::min(budget, device.memory) - graph.resident());
    const double peak = largest_excess(work);
    Bounds bounds;
    bounds.compute = total(work.time);
    bounds.transfer = peak == 0 ? 0 : peak / device.d2h + peak / device.h2d;
    bounds.fractional = fractional_bound(work, device.d2h, device.h2d);
    return bounds;
}

} // namespace memsched
