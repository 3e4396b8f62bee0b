#include "memsched/bounds/cut_bound.h"

#include "memsched/bounds/steady_bound.h"
#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

namespace memsched {
namespace {

constexpr int most_ticks = 1000;   // of work: 0.1 s, more where a cut is far larger than the caches
constexpr double rounding = 1e-15; // relative, of a few products and sums
constexpr int between = 16;        // prices considered between two that were asked

struct Linear { // at - fall * h + rise * (h - from), or less by rounding
    Seconds at = 0, fall = 0, rise = 0;
    double from = 0;

    Seconds value(double h) const { return at - fall * h + rise * (h - from) - rounding * rise * from; }
    Seconds slope() const { return rise - fall; }
};

// The least value, over h from 0 to `most`, of the largest of these.
template <std::size_t count> Seconds least_of_largest(const std::array<Linear, count>& lines, double most) {
    const auto largest = [&](double h) {
        Seconds value = 0;
        for (const Linear& line : lines) {
            value = std::max(value, line.value(h));
        }
        return value;
    };
    Seconds least = std::min(largest(0), std::isfinite(most) ? largest(most) : never);
    for (std::size_t a = 0; a < count; ++a) {
        for (std::size_t b = 0; b < a; ++b) {
            const double h = (lines[b].value(0) - lines[a].value(0)) / (lines[a].slope() - lines[b].slope());
            if (std::isfinite(h) && h > 0 && h < most) {
                least = std::min(least, largest(h));
            }
        }
    }
    return least;
}

} // namespace

// The least time T such that some number of bytes h may be on the host when p starts: T is at least the time of all
// ops and of those that run again; h / d2h and then p, its descendants and those; the ancestors of p and then h / h2d;
// h / d2h + h / h2d. Where lists are repeated, what may travel at any time counts in none of these but the first: it
// loads the link, and so does the rest, in each repetition.
Seconds RetentionCurve::time_of(const Retention::Point& line) const {
    const double room = static_cast<double>(capacity_ - retention_.own());
    const Seconds again = (line.least - line.price * room) - // if nothing is on the host
                          rounding * (line.least + line.price * room);
    if (again <= 0) {
        return total_;
    }
    const Retention::Travel& travel = retention_.travel();
    const auto all_but = [&](Bytes some) { return static_cast<double>(travel.all - some); };
    const double any_time = all_but(0), unchanged = all_but(travel.out);
    // Without a way out, what nobody changes may still be on the host, and without one back nothing.
    const double may = device_.h2d == 0 ? 0 : device_.d2h == 0 ? unchanged : never;
    const double host = device_.host_memory ? std::min(may, static_cast<double>(*device_.host_memory)) : may;
    const double away = (again - retention_.most_again()) / line.price; // even if all that could run again did
    if (away > host * (1 + 1e-9) + 0.5) {
        return never;
    }
    if (host == 0) {
        return total_ + again;
    }
    const double out = device_.d2h == 0 ? 0 : 1 / device_.d2h, in = 1 / device_.h2d;
    const std::array lines{Linear{total_},
                           Linear{total_ + again, line.price},
                           Linear{retention_.after() + again, line.price, out, all_but(travel.out_earlier)},
                           Linear{retention_.after(), 0, out, all_but(travel.out_earlier)},
                           Linear{retention_.before(), 0, in, all_but(travel.back_later)},
                           Linear{0, 0, out + in, any_time},
                           Linear{0, 0, in},
                           Linear{0, 0, out, unchanged},
                           Linear{travel.quiet, 0, out, all_but(travel.changed)},
                           device_.duplex ? Linear{} : Linear{in * unchanged, 0, out + in, unchanged}};
    return std::max(total_, least_of_largest(lines, host));
}

RetentionCurve::RetentionCurve(const Graph& graph, OpId p, Retention::Order order, const Device& device, Bytes capacity,
                               Seconds total, const LargeUpdates* changes)
    : retention_(graph, p, order, changes), device_(device), capacity_(capacity), total_(total), best_{total} {}

void RetentionCurve::ask(Seconds price, Pace& pace) {
    const Retention::Point point = retention_.cheapest(price, pace);
    const Seconds seconds = time_of(point);
    if (seconds > best_.seconds) {
        best_ = {seconds, retention_.op(), price}; // as asked, so that the same flow is found again
    }
    points_.insert(std::ranges::lower_bound(points_, point.price, {}, &Retention::Point::price), point);
}

// As a function of the price the time of a line rises to its best value and falls again.
const CutBound& RetentionCurve::refine(int most, const CutBound& known, Pace& pace) {
    if (retention_.needed() + retention_.own() <= capacity_) {
        return best_;
    }
    if (points_.empty()) {
        const double typical = (retention_.before() + retention_.after()) / static_cast<double>(retention_.needed());
        const Seconds lowest = typical * 1e-4;
        points_ = {{lowest * static_cast<double>(retention_.needed()), lowest, 0, retention_.needed()}}; // all is held
        ask(typical * 1e6, pace);
        --most;
    }
    for (; most > 0; --most) {
        std::size_t best = 0;
        Seconds largest = -1;
        for (std::size_t k = 0; k < points_.size(); ++k) {
            const Seconds seconds = time_of(points_[k]);
            if (seconds > largest) {
                largest = seconds;
                best = k;
            }
        }
        // In the two gaps beside the best price, no line is above those of the two points that end the gap.
        Seconds next = 0, promise = std::max(largest, known.seconds) * (1 + 1e-7);
        for (const std::size_t left : {best - 1, best}) {
            if (left >= points_.size() || left + 1 >= points_.size()) {
                continue;
            }
            const Retention::Point &one = points_[left], &other = points_[left + 1];
            const auto promised = [&](Seconds price) {
                const Seconds least = std::min(one.again + price * static_cast<double>(one.held),
                                               other.again + price * static_cast<double>(other.held));
                const Seconds seconds = time_of({least, price, 0, 0});
                if (seconds > promise && price > one.price * (1 + 1e-9) && price < other.price * (1 - 1e-9)) {
                    next = price;
                    promise = seconds;
                }
            };
            if (one.held > other.held) {
                promised((other.again - one.again) / static_cast<double>(one.held - other.held)); // where they meet
            }
            for (int k = 1; k < between; ++k) {
                promised(one.price * std::pow(other.price / one.price, static_cast<double>(k) / between));
            }
        }
        if (next == 0) {
            break;
        }
        const bool first =
            points_.size() == 2 && known.price > points_.front().price && known.price < points_.back().price;
        ask(first ? known.price : next, pace); // the best price of an op near by is a good one here
    }
    return best_;
}

CutBound cut_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress) {
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    const Lifetimes lifetimes(graph);
    CutBound best;
    Seconds total = 0;
    for (const Op& op : graph.ops()) {
        total += on_device(op) ? fastest(op).time : 0;
    }
    best.seconds = capacity < lifetimes.least ? never
                   : graph.persistent()       ? steady_bounds(graph, device, budget).fractional
                                              : total;
    if (best.seconds == never) {
        return best;
    }
    std::vector<OpId> full; // ops at which something must be away
    for (std::size_t p = 0; p < graph.ops().size(); ++p) {
        if (on_device(graph.ops()[p]) && lifetimes.usage[p] > capacity) {
            full.push_back(static_cast<OpId>(p));
        }
    }
    if (full.empty()) {
        return best;
    }
    int ticks = 0;
    const Progress limited{[&](double fraction) { return progress.tick(fraction) || ++ticks > most_ticks; }};
    Pace pace(limited);
    const LargeUpdates changes(graph);
    std::map<std::size_t, Seconds> asked; // by index into full
    std::unique_ptr<RetentionCurve> best_curve;
    const auto ask = [&](std::size_t k, int most) {
        if (asked.contains(k)) {
            return;
        }
        auto curve =
            std::make_unique<RetentionCurve>(graph, full[k], Retention::Order::any, device, capacity, total, &changes);
        bool stopped = false;
        try {
            curve->refine(most, best, pace);
        } catch (const Stopped&) { // what it has is valid
            stopped = true;
        }
        asked[k] = curve->best().seconds;
        if (asked[k] > best.seconds) {
            best = curve->best();
            best_curve = std::move(curve);
        }
        if (stopped) {
            throw Stopped{};
        }
    };
    try {
        constexpr std::size_t coarse = 16;
        const auto fullest = std::ranges::max_element(full, {}, [&](OpId p) { return lifetimes.usage[at(p)]; });
        ask(static_cast<std::size_t>(fullest - full.begin()), 40);
        for (std::size_t k = 0; k <= coarse; ++k) {
            ask(k * (full.size() - 1) / coarse, 12);
        }
        // Between the best one and its neighbours, in halves.
        for (int round = 0; round < 24; ++round) {
            const auto top = std::ranges::max_element(asked, {}, [](const auto& one) { return one.second; });
            const std::size_t left = top == asked.begin() ? top->first : std::prev(top)->first;
            const std::size_t right = std::next(top) == asked.end() ? top->first : std::next(top)->first;
            const std::size_t middle = top->first;
            if (middle - left <= 1 && right - middle <= 1) {
                break;
            }
            if (middle - left > 1) {
                ask((left + middle) / 2, 12);
            }
            if (right - middle > 1) {
                ask((right + middle) / 2, 12);
            }
        }
        if (best_curve) {
            best = best_curve->refine(60, best, pace);
        }
    } catch (const Stopped&) {
        if (best_curve) { // what it has is valid
            best = best_curve->best();
        }
    }
    return best;
}

} // namespace memsched
