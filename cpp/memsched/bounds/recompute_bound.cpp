#include "memsched/bounds/recompute_bound.h"

#include "memsched/bounds/instants.h"
#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace memsched {
namespace {

constexpr std::int64_t most_steps =
    200'000'000; // per scan, about a nanosecond each; beyond that fewer instants are used

// Bytes brought back by recomputation, cheapest first: sums over pieces in this order, some of which are present.
class Rerun {
  public:
    using Runs = Instants::Runs;

    explicit Rerun(std::size_t pieces) : leaves_(std::bit_ceil(std::max<std::size_t>(pieces, 1))), sums_(2 * leaves_) {}

    // Takes effect after update() of the same piece, or rebuild().
    void put(std::size_t piece, const Runs& runs) { sums_[leaves_ + piece] = runs; }
    void update(std::size_t piece) {
        for (std::size_t node = (leaves_ + piece) / 2; node > 0; node /= 2) {
            add(node);
        }
    }
    void rebuild() {
        for (std::size_t node = leaves_; --node > 0;) {
            add(node);
        }
    }
    // Whether this many updates take longer than rebuilding all sums.
    bool many(std::size_t updates) const {
        return updates * static_cast<std::size_t>(std::bit_width(leaves_)) > leaves_;
    }

    Seconds time(double bytes) const {
        if (bytes <= 0) {
            return 0;
        }
        if (bytes > sums_[1].bytes) {
            return never;
        }
        Seconds sum = 0;
        std::size_t node = 1;
        while (node < leaves_) {
            node *= 2;
            if (bytes > sums_[node].bytes) {
                bytes -= sums_[node].bytes;
                sum += sums_[node].time;
                ++node;
            }
        }
        return sum + sums_[node].time * std::min(1.0, bytes / sums_[node].bytes);
    }

  private:
    void add(std::size_t node) {
        const Runs &left = sums_[2 * node], &right = sums_[2 * node + 1];
        sums_[node] = {left.time + right.time, left.bytes + right.bytes};
    }

    std::size_t leaves_;
    std::vector<Runs> sums_; // a tree as in a heap: entry k has the sums of 2 k and 2 k + 1
};

// The best share of the link to bring back the missing bytes: its time grows with the share, while the time of
// recomputation falls. At most `enough`, if that makes no difference. total: compute time.
Seconds cheapest(const Instants::Instant& p, double missing, Seconds total, const Rerun& rerun, const Device& device,
                 Seconds enough) {
    const bool linked = device.d2h > 0 && device.h2d > 0;
    const auto link = [&](double bytes) {
        const Seconds out = bytes / device.d2h, in = bytes / device.h2d;
        return std::max({out + in, p.before + in, out + p.after});
    };
    const auto compute = [&](double bytes) { return total + rerun.time(missing - bytes); };
    if (!linked) {
        return compute(0);
    }
    double low = 0, high = missing;
    if (link(high) <= std::max(enough, compute(high)) || compute(low) <= enough) {
        return enough;
    }
    for (int step = 0; step < 60 && link(low) < compute(low); ++step) {
        const double middle = (low + high) / 2;
        (link(middle) < compute(middle) ? low : high) = middle;
    }
    return std::max(total, link(low) < compute(low) ? std::max(link(low), compute(high)) : compute(high));
}

// The `count` instants at which the plain run holds most, in order.
std::vector<std::size_t> fullest(std::vector<std::size_t> instants, std::size_t count,
                                 const std::vector<Bytes>& usage) {
    std::ranges::stable_sort(instants, [&](std::size_t one, std::size_t other) { return usage[one] > usage[other]; });
    instants.resize(count);
    std::ranges::sort(instants);
    return instants;
}

// The largest value over the instants, at least the sum of all times.
Seconds largest(const Instants& instants, const std::vector<Bytes>& spare, const Device& device, Pace& pace) {
    const std::vector<Instants::Runs>& runs = instants.runs();
    std::vector<std::int32_t> order = all_ids(runs.size());
    std::ranges::sort(order, [&](std::int32_t one, std::int32_t other) {
        return runs[at(one)].time * runs[at(other)].bytes < runs[at(other)].time * runs[at(one)].bytes;
    });
    const std::vector<std::int32_t> rank = inverse(order);
    Rerun rerun(runs.size());
    Seconds bound = instants.total();
    std::size_t done = 0;
    for (const Instants::Instant& p : instants.found()) {
        const std::size_t first = done;
        for (; done < p.changes; ++done) {
            const auto& [piece, there] = instants.changes()[done];
            rerun.put(at(rank[piece]), there ? runs[piece] : Instants::Runs{});
        }
        if (rerun.many(done - first)) {
            rerun.rebuild();
        } else {
            for (std::size_t k = first; k < done; ++k) {
                rerun.update(at(rank[instants.changes()[k].piece]));
            }
        }
        pace.spend(static_cast<std::int64_t>(1000 + 8 * (done - first)));
        const double missing = p.beside - static_cast<double>(spare[p.op]);
        if (missing > 0) {
            bound = std::max(bound, cheapest(p, missing, instants.total(), rerun, device, bound));
        }
    }
    return bound;
}

} // namespace

Seconds recompute_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress) {
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    const Lifetimes lifetimes(graph);
    if (capacity < lifetimes.least) {
        return never;
    }
    std::vector<std::size_t> ops;
    std::vector<Bytes> spare;
    for (std::size_t p = 0; p < graph.ops().size(); ++p) {
        spare.push_back(capacity - lifetimes.need[p]);
        if (graph.ops()[p].once && lifetimes.usage[p] > capacity) { // it holds all tensors beside p
            ops.push_back(p);
        }
    }
    Pace pace(progress);
    Instants instants(graph);
    std::size_t done = 0;
    while ((done = instants.scan(ops, most_steps, pace)) < ops.size()) {
        ops = fullest(std::move(ops), done / 2, lifetimes.usage);
    }
    return largest(instants, spare, device, pace);
}

} // namespace memsched
