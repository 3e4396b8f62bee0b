#include "memsched/simulate/simulate.h"

#include "memsched/simulate/steady.h"
#include "memsched/support/errors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace memsched {
namespace {

// The observer of the fast path: records nothing.
struct Silent {
    void step(StepId, Seconds, Seconds) {}
    void memory(Seconds, StepId, Bytes) {}
    void moved(Verb, Bytes) {}
    void computed(Seconds, bool) {}
};

} // namespace

Simulator::Simulator(const Graph& graph, const Device& device, Bytes budget)
    : graph_(graph), sources_(source_bytes(graph)) {
    aim(device, budget);
}

void Simulator::aim(const Device& device, Bytes budget) {
    device_ = device;
    capacity_ = std::min(budget, device.memory) - graph_.resident();
}

void Simulator::reset(const StepList& list) {
    tensors_.assign(graph_.tensors().size(), {});
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
        tensors_[t].on_device = graph_.tensors()[t].source();
    }
    list_ = &list;
    ranges_.clear();
    if (list.contiguous()) { // sources are packed from address 0, in the graph's order
        Bytes low = 0;
        for (std::size_t t = 0; t < tensors_.size(); ++t) {
            const Bytes bytes = graph_.tensors()[t].bytes;
            if (tensors_[t].on_device && bytes > 0) {
                Seconds start = 0;
                ranges_.take(low, low + bytes, start);
                tensors_[t].low = low;
                low += bytes;
            }
        }
    }
    ran_.assign(graph_.ops().size(), 0);
    ends_.resize(list.steps.size());
    awaited_.clear();
    run_bytes_ = 0;
    at_start_ = sources_;
    host_bytes_ = 0;
    start_at_border(list);
    live_ = at_start_;
    std::ranges::fill(stream_free_, 0.0);
    issue_ = 0;
    fault_.clear();
}

bool Simulator::reserve(Bytes bytes, Seconds& start) {
    if (bytes == 0) {
        return true; // an empty allocation never waits
    }
    const Bytes slack = capacity_ - live_ - bytes;
    if (slack < 0) {
        return fail([&] {
            return "needs " + std::to_string(bytes) + " bytes, but " + std::to_string(live_) + " of " +
                   std::to_string(capacity_) + " (budget less resident) are held; free something before it";
        });
    }
    // Either bytes released by transfers before the last run ends suffice, or that run must end.
    if (run_bytes_ > 0) {
        const Seconds run_end = stream_free_[0];
        if (slack >= run_bytes_ && awaited_.when_left(slack - run_bytes_) < run_end) {
            start = std::max(start, awaited_.when_left(slack - run_bytes_));
            return true;
        }
        start = std::max(start, run_end);
    }
    start = std::max(start, awaited_.when_left(slack));
    return true;
}

void Simulator::give_back(Seconds done, Bytes bytes) {
    if (bytes == 0 || done <= issue_) {
        return; // released before any later step can start (E1)
    }
    if (done == stream_free_[0]) {
        run_bytes_ += bytes; // the common case; all others wait for the link
        return;
    }
    awaited_.add(done, bytes);
}

bool Simulator::place(const Step& step, Seconds& start) {
    bool placed = true;
    each_brought(graph_, step, [&](TensorId tensor, Bytes bytes, std::size_t place) {
        const Bytes low = list_->at[at(current_)][place];
        placed = placed && ((bytes == 0 && low == StepList::no_address) || take(tensor, bytes, low, start));
    });
    return placed;
}

bool Simulator::take(TensorId tensor, Bytes bytes, Bytes low, Seconds& start) {
    const auto name = [&] { return tensor < 0 ? "the workspace" : "'" + graph_.tensor(tensor).name + "'"; };
    if (low == StepList::no_address || low > capacity_ - bytes) {
        return fail([&] {
            return (low == StepList::no_address ? name() + " has no address"
                                                : name() + " is at " + std::to_string(low)) +
                   "; its " + std::to_string(bytes) + " bytes need one from 0 to " + std::to_string(capacity_ - bytes);
        });
    }
    if (bytes == 0) {
        return true;
    }
    if (const auto taken = ranges_.taken(low, low + bytes)) {
        return fail([&] {
            return name() + " at " + std::to_string(low) + " to " + std::to_string(low + bytes) +
                   " overlaps what is held at " + std::to_string(taken->first) + " to " +
                   std::to_string(taken->second) + "; move it or free the other before";
        });
    }
    ranges_.take(low, low + bytes, start);
    if (tensor >= 0) {
        tensors_[at(tensor)].low = low;
    }
    return true;
}

bool Simulator::await_reads(const Op& op, Seconds& start) {
    for (const TensorId t : op.reads) {
        const TensorState& state = tensors_[at(t)];
        if (!state.on_device) {
            return fail([&] {
                return "run '" + op.name + "' reads '" + graph_.tensor(t).name +
                       "', which is not on the device; prefetch it or run its writer before";
            });
        }
        start = std::max(start, state.ready);
    }
    return true;
}

bool Simulator::count_outputs(const Step& step, const Op& op, Bytes& outputs) {
    for (const TensorId t : op.writes) {
        if (skips(graph_, step, t)) {
            continue;
        }
        if (tensors_[at(t)].on_device) {
            return fail([&] {
                return "run '" + op.name + "' writes '" + graph_.tensor(t).name +
                       "', which is on the device already; free it before";
            });
        }
        outputs += graph_.tensor(t).bytes;
    }
    return true;
}

template <class Observer> bool Simulator::play_run(const Step& step, Observer& observer) {
    const Op& op = graph_.op(step.id);
    const auto id = at(step.id);
    if (op.once && ran_[id]) {
        return fail([&] { return "op '" + op.name + "' may run only once; it ran before"; });
    }
    const Bytes scratch = workspace(op, step.choice, step.skip);
    Seconds start = std::max(earliest_, stream_free_[0]);
    Bytes outputs = 0;
    if (!await_reads(op, start) || (graph_.persistent() && !updates_in_order(step.id)) ||
        !count_outputs(step, op, outputs) ||
        !(list_->contiguous() ? place(step, start) : reserve(outputs + scratch, start))) {
        return false;
    }
    const Seconds time = op.choices[at(step.choice)].time;
    const Seconds end = start + time;
    for (const TensorId t : op.reads) {
        Seconds& touch = tensors_[at(t)].touch;
        touch = std::max(touch, end);
    }
    for (const TensorId t : op.writes) {
        if (!skips(graph_, step, t)) {
            TensorState& state = tensors_[at(t)];
            state.on_device = true;
            state.ready = state.touch = end;
        }
    }
    for (const TensorId t : op.updates) {
        TensorState& state = tensors_[at(t)];
        state.ready = end;
        state.host = -1; // what the host has is stale
        ++state.version;
    }
    live_ += outputs;
    stream_free_[0] = end;
    issue_ = start;
    awaited_.forget_until(issue_);
    run_bytes_ = 0;                           // the run before has ended
    if (list_->contiguous() && scratch > 0) { // in list order it is freed right after the run (E6)
        ranges_.leave(list_->at[at(current_)].back(), end);
    }
    give_back(end, scratch);
    observer.memory(start, current_, outputs + scratch);
    observer.memory(end, current_, -scratch);
    observer.computed(time, ran_[id] != 0);
    observer.step(current_, start, end);
    ends_[at(current_)] = end;
    ran_[id] = 1;
    return true;
}

template <class Observer> bool Simulator::play_transfer(const Step& step, Observer& observer) {
    const Tensor& tensor = graph_.tensor(step.id);
    TensorState& state = tensors_[at(step.id)];
    const bool out = step.verb == Verb::offload;
    const Bandwidth bandwidth = out ? device_.d2h : device_.h2d;
    if (bandwidth == 0) {
        return fail(
            [&] { return "'" + tensor.name + "' cannot move: the bandwidth is 0, so there is no link; give beta"; });
    }
    if (out != state.on_device) {
        return fail([&] {
            return out ? "offload of '" + tensor.name + "', which is not on the device"
                       : "prefetch of '" + tensor.name + "', which is on the device already";
        });
    }
    if (!out && state.host < 0) {
        return fail([&] { return "prefetch of '" + tensor.name + "', which has no host copy; offload it before"; });
    }
    Seconds& link = stream_free_[!out && device_.duplex ? 2 : 1];
    Seconds start = std::max({earliest_, link, out ? state.ready : state.host});
    if (!out && !(list_->contiguous() ? place(step, start) : reserve(tensor.bytes, start))) {
        return false;
    }
    const Seconds end = start + transfer_time(tensor.bytes, bandwidth, device_.latency);
    link = end;
    if (out) {
        state.touch = std::max(state.touch, end);
        if (state.host < 0) {
            state.host = end;
            host_bytes_ += state.kept ? 0 : tensor.bytes;
            state.kept = true;
            if (device_.host_memory && host_bytes_ > *device_.host_memory) {
                return fail([&] {
                    return "offload of '" + tensor.name + "' brings the host to " + std::to_string(host_bytes_) +
                           " bytes, over host_memory = " + std::to_string(*device_.host_memory);
                });
            }
        }
    } else {
        state.on_device = true;
        state.ready = state.touch = end;
        live_ += tensor.bytes;
        observer.memory(start, current_, tensor.bytes);
    }
    observer.moved(step.verb, tensor.bytes);
    observer.step(current_, start, end);
    ends_[at(current_)] = end;
    return true;
}

template <class Observer> bool Simulator::play_free(const Step& step, Observer& observer) {
    const Tensor& tensor = graph_.tensor(step.id);
    TensorState& state = tensors_[at(step.id)];
    if (!state.on_device) {
        return fail([&] { return "free of '" + tensor.name + "', which is not on the device"; });
    }
    const Seconds done = std::max(issue_, state.touch);
    state.on_device = false;
    live_ -= tensor.bytes;
    if (list_->contiguous() && tensor.bytes > 0) {
        ranges_.leave(state.low, done);
    }
    give_back(done, tensor.bytes);
    observer.memory(done, current_, -tensor.bytes);
    observer.step(current_, done, done);
    ends_[at(current_)] = done;
    return true;
}

template <class Observer> bool Simulator::play_update(const Step& step, Observer& observer) {
    Seconds start = std::max(earliest_, stream_free_[3]);
    if (!update_on_host(step.id, start)) {
        return false;
    }
    observer.step(current_, start, stream_free_[3]);
    ends_[at(current_)] = stream_free_[3];
    return true;
}

template <class Observer> bool Simulator::play(const StepList& list, Observer& observer) {
    reset(list);
    current_ = -1;
    if (!begins()) {
        return false;
    }
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Step& step = list.steps[k];
        current_ = static_cast<StepId>(k);
        earliest_ = issue_;
        if (step.after >= 0) {
            for (const StepId earlier : list.after[at(step.after)]) {
                earliest_ = std::max(earliest_, ends_[at(earlier)]);
            }
        }
        const bool legal = step.verb == Verb::run      ? play_run(step, observer)
                           : step.verb == Verb::free   ? play_free(step, observer)
                           : step.verb == Verb::update ? play_update(step, observer)
                                                       : play_transfer(step, observer);
        if (!legal) {
            return false;
        }
    }
    current_ = -1;
    const auto missing = std::ranges::find(ran_, 0);
    if (missing != ran_.end()) {
        return fail([&] {
            return "op '" + graph_.op(static_cast<OpId>(missing - ran_.begin())).name +
                   "' never runs; every op must run at least once";
        });
    }
    return !graph_.persistent() || ends_as_it_began();
}

Seconds Simulator::makespan(const StepList& list, const Progress& progress) {
    explain_ = false;
    Silent silent;
    const auto later = [](Seconds one, Seconds other) { return std::max(one, other); };
    if (graph_.persistent()) {
        return play(list, silent) ? Steady(graph_, list, device_, capacity_, progress).period() : illegal;
    }
    return play(list, silent) ? std::accumulate(ends_.begin(), ends_.end(), Seconds{0}, later) : illegal;
}

template <class Writer> void Simulator::write(const StepList& list, Writer& writer, const Progress& progress) {
    explain_ = true;
    if (!play(list, writer)) {
        const std::string where = current_ < 0 ? "" : "step " + std::to_string(current_) + ": ";
        throw ScheduleError(where + fault_, current_);
    }
    if (graph_.persistent()) {
        Steady(graph_, list, device_, capacity_, progress).write(writer);
    } else {
        writer.finish(graph_.resident() + at_start_);
    }
    if (!std::isfinite(writer.totals.makespan)) {
        throw ScheduleError("the makespan is not finite; is the bandwidth too small or the latency too large?");
    }
}

Totals Simulator::totals(const StepList& list) {
    sums_.totals = {};
    sums_.events.clear();
    sums_.busy = 0;
    write(list, sums_, {});
    return sums_.totals;
}

Timeline Simulator::timeline(const StepList& list, const Progress& progress) {
    TimelineWriter writer(list.steps.size());
    write(list, writer, progress);
    if (!graph_.persistent()) {
        writer.timeline.blocks = residency(graph_, list);
    }
    return std::move(writer.timeline);
}

Timeline simulate(const Graph& graph, const StepList& list, const Device& device, Bytes budget,
                  const Progress& progress) {
    return Simulator(graph, device, budget).timeline(list, progress);
}

} // namespace memsched
