#include "memsched/recompute_bound.h"

#include "memsched/lifetimes.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace memsched {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

// What running ops again brings back, the cheapest byte first.
class Rerun {
  public:
    void add(Seconds time, double bytes) {
        if (bytes > 0) {
            pieces_.emplace_back(time, bytes);
        }
    }
    void sort() {
        std::sort(pieces_.begin(), pieces_.end(),
                  [](const auto& a, const auto& b) { return a.first * b.second < b.first * a.second; });
    }
    Seconds time(double bytes) const {
        Seconds sum = 0;
        for (const auto& [time, own] : pieces_) {
            if (bytes <= 0) {
                break;
            }
            sum += time * std::min(1.0, bytes / own);
            bytes -= own;
        }
        return bytes > 0 ? never : sum;
    }

  private:
    std::vector<std::pair<Seconds, double>> pieces_;
};

// The instant at which p starts.
struct Instant {
    double missing = 0; // bytes to bring back
    Rerun rerun;
    Seconds before = 0, after = 0, total = 0; // compute time
};

// The best share of the link: its time grows with the share, the time of running again falls.
Seconds cheapest(const Instant& p, const Device& device) {
    const bool linked = device.d2h > 0 && device.h2d > 0;
    const auto link = [&](double bytes) {
        const Seconds out = bytes / device.d2h, in = bytes / device.h2d;
        return std::max({out + in, p.before + in, out + p.after});
    };
    const auto compute = [&](double bytes) { return p.total + p.rerun.time(p.missing - bytes); };
    if (!linked) {
        return compute(0);
    }
    double low = 0, high = p.missing;
    if (link(high) <= compute(high)) {
        return compute(high);
    }
    for (int step = 0; step < 60 && link(low) < compute(low); ++step) {
        const double middle = (low + high) / 2;
        (link(middle) < compute(middle) ? low : high) = middle;
    }
    return std::max(p.total, link(low) < compute(low) ? std::max(link(low), compute(high)) : compute(high));
}

// What every instant is made from.
class Instants {
  public:
    Instants(const Graph& graph, Bytes capacity)
        : graph_(graph), lifetimes_(graph), capacity_(capacity), readers_(graph.tensors().size()),
          again_(graph.ops().size()) {
        for (std::size_t q = 0; q < graph.ops().size(); ++q) {
            time_.push_back(fastest(graph.ops()[q]).time);
            total_ += time_.back();
            for (const TensorId t : graph.ops()[q].reads) {
                readers_[static_cast<std::size_t>(t)].push_back(q);
            }
        }
    }

    bool any_plan() const { return lifetimes_.least <= capacity_; }
    Seconds total() const { return total_; }

    Instant at(std::size_t p) {
        find_neighbours(p);
        Instant instant;
        instant.total = total_;
        instant.missing = static_cast<double>(lifetimes_.need[p] - capacity_);
        std::fill(again_.begin(), again_.end(), 0.0);
        for (std::size_t t = 0; t < readers_.size(); ++t) {
            if (!beside(p, t)) {
                continue;
            }
            const auto bytes = static_cast<double>(graph_.tensors()[t].bytes);
            const OpId writer = graph_.writer(static_cast<TensorId>(t));
            instant.missing += bytes;
            if (writer >= 0 && !graph_.op(writer).once) {
                again_[static_cast<std::size_t>(writer)] += bytes;
            }
        }
        for (std::size_t q = 0; q < time_.size(); ++q) {
            instant.rerun.add(time_[q], again_[q]);
            instant.before += before_[q] ? time_[q] : 0;
            instant.after += q == p || after_[q] ? time_[q] : 0;
        }
        instant.rerun.sort();
        return instant;
    }

  private:
    // The listed order is topological, so one walk in each direction finds all.
    void find_neighbours(std::size_t p) {
        const std::size_t ops = graph_.ops().size();
        before_.assign(ops, false);
        after_.assign(ops, false);
        const auto writers = [&](std::size_t q, const auto& each) {
            for (const TensorId t : graph_.ops()[q].reads) {
                if (const OpId writer = graph_.writer(t); writer >= 0) {
                    each(static_cast<std::size_t>(writer));
                }
            }
        };
        for (std::size_t q = p + 1; q-- > 0;) {
            if (q == p || before_[q]) {
                writers(q, [&](std::size_t writer) { before_[writer] = true; });
            }
        }
        for (std::size_t q = p + 1; q < ops; ++q) {
            writers(q, [&](std::size_t writer) { after_[q] = after_[q] || writer == p || after_[writer]; });
        }
    }

    // Whether p does not touch tensor t, but ops before p have written it and ops after p read it.
    bool beside(std::size_t p, std::size_t t) const {
        const OpId writer = graph_.writer(static_cast<TensorId>(t));
        return (writer < 0 || before_[static_cast<std::size_t>(writer)]) &&
               std::find(readers_[t].begin(), readers_[t].end(), p) == readers_[t].end() &&
               std::any_of(readers_[t].begin(), readers_[t].end(), [&](std::size_t q) { return after_[q]; });
    }

    const Graph& graph_;
    Lifetimes lifetimes_;
    std::vector<bool> before_, after_; // the ops that must run before p, and after it
    Bytes capacity_;
    std::vector<std::vector<std::size_t>> readers_;
    std::vector<Seconds> time_;
    Seconds total_ = 0;
    std::vector<double> again_; // scratch: bytes that running an op again brings back
};

} // namespace

Seconds recompute_bound(const Graph& graph, const Device& device, Bytes budget) {
    Instants instants(graph, std::min(budget, device.memory) - graph.resident());
    if (!instants.any_plan()) {
        return never;
    }
    Seconds bound = instants.total();
    for (std::size_t p = 0; p < graph.ops().size(); ++p) {
        if (graph.ops()[p].once) {
            const Instant instant = instants.at(p);
            bound = instant.missing > 0 ? std::max(bound, cheapest(instant, device)) : bound;
        }
    }
    return bound;
}

} // namespace memsched
