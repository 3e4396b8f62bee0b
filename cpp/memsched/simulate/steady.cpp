#include "memsched/simulate/steady.h"

#include "memsched/simulate/cycle_ratio.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace memsched {
namespace {

constexpr double steady_rounding = 1e-14; // of sums, relative to the times of one repetition
constexpr double same_instant = 1e-9;     // relative to the times of one repetition
constexpr int most_looks = 10000;         // far more than any plan has needed

// Gives all events that are no more than so many seconds apart from the first of them its time, and sorts them.
void join_instants(std::vector<MemoryEvent>& events, Seconds apart) {
    std::sort(events.begin(), events.end());
    Seconds instant = -never;
    for (MemoryEvent& event : events) {
        instant = event.time > instant + apart ? event.time : instant;
        event.time = instant;
    }
    std::sort(events.begin(), events.end());
}

} // namespace

Steady::Steady(const Graph& graph, const StepList& list, const Device& device, Bytes capacity, const Progress& progress)
    : pace_(progress), steps_(repeated_steps(graph, list, device, capacity, pace_)), chosen_(steps_.size()),
      at_border_(graph.resident() + bytes_at_border(graph, list)) {
    Seconds all = 0;
    for (std::size_t k = steps_.size(); k-- > 0;) {
        all += steps_.each[k].time;
        if (list.steps[k].verb == Verb::run) {
            busy_ += steps_.each[k].time;
            run_ = k;
        }
    }
    if (!std::isfinite(all)) {
        period_ = never;
        return;
    }
    const std::vector<Seconds> zero(steps_.size(), 0);
    Times before = next({zero, zero}), now = next(before); // from anywhere; later choices are rarely better
    choose(before, now, 0);
    for (int looks = 0; looks < most_looks; ++looks) {
        solve(steady_rounding * all);
        before = times_;
        for (std::vector<Seconds>* times : {&before.start, &before.through}) {
            std::ranges::for_each(*times, [&](Seconds& time) { time -= period_; });
        }
        if (!choose(before, times_, steady_rounding * all)) {
            count_from_first_start();
            return;
        }
    }
    throw std::logic_error("the steady state of the plan was not found; please report this with the plan");
}

// All else follows from the starts that are shown, so that whoever plays them again finds the same instants equal.
void Steady::count_from_first_start() {
    const Seconds first = *std::ranges::min_element(times_.start);
    Seconds last = 0;
    for (std::size_t k = 0; k < steps_.size(); ++k) {
        times_.start[k] -= first;
        last = std::max(last, times_.start[k] + steps_.each[k].time);
    }
    Seconds through = last - period_;
    for (std::size_t k = 0; k < steps_.size(); ++k) {
        through = std::max(through, times_.start[k] + steps_.each[k].time);
        times_.through[k] = through;
    }
}

Seconds Steady::time_of(const Awaited& awaited, const Times& before, const Times& now) const {
    const Seconds start = (awaited.before ? before : now).start[at(awaited.step)];
    return awaited.start ? start : start + steps_.each[at(awaited.step)].time;
}

std::size_t Steady::count_awaited(std::size_t step) const {
    Bytes lacking = -steps_.each[step].may_lack;
    for (const Awaited& one : steps_.returns[step]) {
        lacking += one.bytes;
    }
    std::size_t enough = 0;
    while (lacking > 0) {
        lacking -= by_time_[enough++].second->bytes;
    }
    return enough;
}

// Those of one stream are in order of time already.
Seconds Steady::returned(std::size_t step, const Times& before, const Times& now) const {
    by_time_.clear();
    for (const Awaited& one : steps_.returns[step]) {
        by_time_.emplace_back(time_of(one, before, now), &one);
    }
    pace_.spend(Pace::named + static_cast<std::int64_t>(by_time_.size()));
    if (!std::ranges::is_sorted(by_time_, {}, &std::pair<Seconds, const Awaited*>::first)) {
        pace_.spend(3 * static_cast<std::int64_t>(by_time_.size()));
        std::ranges::sort(by_time_); // equal times in the order of the list
    }
    return by_time_[count_awaited(step) - 1].first;
}

Steady::Times Steady::next(const Times& before) const {
    Times now{std::vector<Seconds>(steps_.size()), std::vector<Seconds>(steps_.size())};
    for (std::size_t k = 0; k < steps_.size(); ++k) {
        Seconds start = before.through[k]; // E9
        for (const Awaited& one : steps_.waits[k]) {
            start = std::max(start, time_of(one, before, now));
        }
        if (!steps_.returns[k].empty()) {
            start = std::max(start, returned(k, before, now));
        }
        now.start[k] = start;
        now.through[k] = std::max(k == 0 ? before.through.back() : now.through[k - 1], start + steps_.each[k].time);
    }
    return now;
}

bool Steady::choose(const Times& before, const Times& now, Seconds least_gain) {
    bool better = false;
    for (std::size_t k = 0; k < steps_.size(); ++k) {
        if (steps_.returns[k].empty()) {
            continue;
        }
        const Seconds back = returned(k, before, now);
        Seconds known = -never;
        for (const Awaited& one : chosen_[k]) {
            known = std::max(known, time_of(one, before, now));
        }
        if (chosen_[k].empty() || back < known - least_gain) {
            chosen_[k].clear();
            for (std::size_t one = 0, count = count_awaited(k); one < count; ++one) {
                chosen_[k].push_back(*by_time_[one].second);
            }
            better = true;
        }
    }
    return better;
}

// Node 2k is the start of step k, node 2k+1 its `through`.
void Steady::solve(Seconds least_gain) {
    const std::size_t n = steps_.size();
    pace_.spend(static_cast<std::int64_t>(n) * Pace::named);
    Rows<Arc> into;
    for (std::size_t k = 0; k < n; ++k) {
        const auto node = static_cast<std::int32_t>(2 * k), through = node + 1;
        const auto add = [&](const Awaited& one) {
            into.push_back({2 * one.step, one.start ? 0 : steps_.each[at(one.step)].time, one.before});
        };
        into.add_row();
        std::ranges::for_each(steps_.waits[k], add);
        std::ranges::for_each(chosen_[k], add);
        into.push_back({through, 0, 1}); // E9
        into.add_row();
        into.push_back({node, steps_.each[k].time, 0});
        into.push_back(k == 0 ? Arc{static_cast<std::int32_t>(2 * n) - 1, 0, 1} : Arc{through - 2, 0, 0});
    }
    const CycleRatio found = largest_ratio(into, static_cast<std::int32_t>(2 * run_), busy_, least_gain, pace_);
    period_ = found.ratio;
    times_ = {std::vector<Seconds>(n), std::vector<Seconds>(n)};
    for (std::size_t k = 0; k < n; ++k) {
        times_.start[k] = found.longest[2 * k];
        times_.through[k] = found.longest[2 * k + 1];
    }
}

// Three repetitions, each from the one before, which is found anew, as the times at hand are rounded one by one. While
// the middle one runs, no step of a fourth does (E9).
Steady::Curve Steady::memory() const {
    const auto n = static_cast<StepId>(steps_.size());
    std::vector<MemoryEvent> events;
    Times times = next(times_);
    for (StepId repetition = 0; repetition < 3; ++repetition) {
        for (StepId k = 0; k < n; ++k) {
            const RepeatedStep& step = steps_.each[at(k)];
            const StepId number = repetition * n + k;
            events.push_back({times.start[at(k)], number, 0, step.takes});
            events.push_back({times.start[at(k)] + step.time, number, 1, -step.gives});
        }
        times = next(times);
    }
    pace_.spend(Pace::named * static_cast<std::int64_t>(events.size()));
    join_instants(events, same_instant * std::max(times_.through.back(), period_));
    const auto first = [&](StepId repetition) {
        return std::ranges::find(events, repetition, [&](const MemoryEvent& event) { return event.step / n; });
    };
    const auto begin = first(1), end = first(2);
    Curve curve{0, {0}, {at_border_}};
    std::for_each(events.begin(), begin, [&](const MemoryEvent& event) { curve.bytes[0] += event.change; });
    std::for_each(begin, end, [&](const MemoryEvent& event) {
        if (event.change != 0) {
            curve.times.push_back(event.time - begin->time);
            curve.bytes.push_back(curve.bytes.back() + event.change);
        }
    });
    curve.peak = std::ranges::max(curve.bytes);
    return curve;
}

void Steady::write(TotalsWriter& writer) const {
    writer.totals.makespan = period_;
    writer.totals.idle = std::max(0.0, period_ - busy_);
    writer.totals.peak_memory = std::isfinite(period_) ? memory().peak : 0;
}

void Steady::write(TimelineWriter& writer) const {
    write(static_cast<TotalsWriter&>(writer));
    static_cast<Totals&>(writer.timeline) = writer.totals;
    if (!std::isfinite(period_)) {
        return;
    }
    for (std::size_t k = 0; k < steps_.size(); ++k) {
        writer.timeline.start[k] = times_.start[k];
        writer.timeline.end[k] = writer.timeline.start[k] + steps_.each[k].time;
    }
    Curve curve = memory();
    writer.timeline.memory_times = std::move(curve.times);
    writer.timeline.memory_bytes = std::move(curve.bytes);
}

} // namespace memsched
