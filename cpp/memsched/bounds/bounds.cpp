#include "memsched/bounds/bounds.h"

#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <numeric>

// Theorem 2 on a graph, without a linear program. Ignore which byte belongs to which tensor. Forwards in time, op j may
// start once its excess has been offloaded, and bytes leave at the speed of the link from the moment they are written;
// running every op as early as possible gives its earliest start s_j. The same in reversed time (bytes arrive no later
// than their next reader) gives r_j, the least time between the end of op j and the end of the training step. Every
// schedule takes at least s_j + u_j + r_j for each j. The maximum is attained by running ops up to the peak op early
// and later ones late, so it is the optimum of the relaxed problem.

namespace memsched {
namespace {

// The earliest start of each op in one direction of time; infinity: never. op(k): the k-th op in that direction.
// supply(k): bytes that may be offloaded from before it on.
template <class Op, class Supply>
std::vector<Seconds> earliest_starts(const Workload& work, const Op& op, const Supply& supply, Bandwidth bandwidth) {
    const std::size_t n = work.time.size();
    std::vector<Seconds> earliest(n);
    Seconds now = 0;
    double copied = 0, available = 0;
    for (std::size_t k = 0; k < n; ++k) {
        const std::size_t j = op(k);
        available += supply(k);
        const double excess = work.excess[j];
        if (excess > copied) {
            if (excess > work.away_most[j] || excess > available || bandwidth == 0) {
                return std::vector<Seconds>(n, never);
            }
            now += (excess - copied) / bandwidth;
            copied = excess;
        }
        earliest[k] = now;
        copied += work.time[j] > 0 ? std::min(available - copied, work.time[j] * bandwidth) : 0;
        now += work.time[j];
    }
    return earliest;
}

// needed: bytes that each op needs if everything is kept, instead of the excess.
Workload workload(const Graph& graph, const Lifetimes& lifetimes, std::vector<Bytes>& needed) {
    const std::size_t n = graph.ops().size();
    Workload work(n);
    std::vector<Bytes> read_later(n + 1, 0); // per op: changes of the bytes written before and read from there on
    for (std::size_t t = 0; t < lifetimes.birth.size(); ++t) {
        if (lifetimes.last_use[t] >= 0) {
            read_later[at(lifetimes.birth[t] + 1)] += graph.tensors()[t].bytes;
            read_later[at(lifetimes.last_use[t]) + 1] -= graph.tensors()[t].bytes;
        }
    }
    Bytes held = 0;
    std::vector<OpId> previous(lifetimes.birth);    // last op that touched a tensor
    std::vector<OpId> arrival(previous.size(), -1); // last op before which a tensor may have been away
    for (std::size_t j = 0; j < n; ++j) {
        held += read_later[j];
        Bytes beside = held; // bytes of the other tensors
        for (const TensorId t : graph.ops()[j].reads) {
            const auto id = at(t);
            beside -= graph.tensor(t).bytes;
            if (static_cast<OpId>(j) > previous[id] + 1) {
                arrival[id] = static_cast<OpId>(j);
            }
            previous[id] = static_cast<OpId>(j);
        }
        work.time[j] = fastest(graph.ops()[j]).time;
        needed.push_back(lifetimes.need[j] + beside);
        work.away_most[j] = static_cast<double>(beside);
    }
    for (std::size_t t = 0; t < arrival.size(); ++t) {
        if (arrival[t] >= 0) { // other tensors are never away while an op runs
            const auto bytes = static_cast<double>(graph.tensors()[t].bytes);
            work.written[at(lifetimes.birth[t] + 1)] += bytes;
            work.wanted[at(arrival[t])] += bytes;
        }
    }
    return work;
}

double largest_excess(const Workload& work) { return std::max(0.0, *std::ranges::max_element(work.excess)); }

Seconds total(const std::vector<Seconds>& times) { return std::accumulate(times.begin(), times.end(), 0.0); }

} // namespace

Seconds fractional_bound(const Workload& work, Bandwidth d2h, Bandwidth h2d) {
    const std::size_t n = work.time.size();
    const Seconds compute = total(work.time);
    if (largest_excess(work) == 0) {
        return compute;
    }
    const auto written = [&](std::size_t k) { return work.written[k]; };
    const auto wanted = [&](std::size_t k) { return k == 0 ? 0.0 : work.wanted[n - k]; };
    const std::vector<Seconds> out = earliest_starts(work, [](std::size_t k) { return k; }, written, d2h);
    const std::vector<Seconds> in = earliest_starts(work, [&](std::size_t k) { return n - 1 - k; }, wanted, h2d);
    Seconds bound = compute;
    for (std::size_t j = 0; j < n; ++j) {
        bound = std::max(bound, out[j] + work.time[j] + in[n - 1 - j]);
    }
    return bound;
}

GraphBounds::GraphBounds(const Graph& graph) : resident_(graph.resident()) {
    const Lifetimes lifetimes(graph);
    least_ = lifetimes.least;
    work_ = workload(graph, lifetimes, needed_);
}

Bounds GraphBounds::on(const Device& device, Bytes budget) const {
    const Bytes capacity = std::min(budget, device.memory) - resident_;
    Workload work = work_;
    for (std::size_t j = 0; j < needed_.size(); ++j) {
        work.excess[j] = static_cast<double>(needed_[j] - capacity);
    }
    const double peak = largest_excess(work);
    Bounds bounds;
    bounds.compute = total(work.time);
    bounds.transfer = peak == 0 ? 0 : peak / device.d2h + peak / device.h2d;
    bounds.fractional = least_ > capacity ? never : fractional_bound(work, device.d2h, device.h2d);
    return bounds;
}

} // namespace memsched
