#include "memsched/simulate/repetition.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace memsched {
namespace {

// Goes through the list twice; the second time, all that a step may wait for has its place in one of both. Steps are
// numbered throughout: the first time 0 .. n-1, the second n .. 2n-1; -1 is "none". What ended a whole repetition
// before a step, rule E9 knows.
class RepetitionScan {
  public:
    RepetitionScan(const Graph& graph, const StepList& list, const Device& device, Bytes capacity, Pace& pace)
        : graph_(graph), list_(list), device_(device), capacity_(capacity), live_(bytes_at_border(graph, list)),
          tensors_(graph.tensors().size()), count_(static_cast<StepId>(list.steps.size())) {
        found_.each.reserve(list.steps.size());
        for (const auto& [tensor, copies] : list.border) {
            tensors_[at(tensor)].kept = tensors_[at(tensor)].on_host = copies != Copies::device;
        }
        for (now_ = 0; now_ < 2 * count_; ++now_) {
            if (now_ == count_) {
                cross_border();
            }
            current_ = {};
            found_.waits.add_row();
            found_.returns.add_row();
            const Step& step = list.steps[at(now_ % count_)];
            wait_for(run_, true); // E1
            if (step.after >= 0) {
                for (const StepId earlier : list.after[at(step.after)]) {
                    wait_for(earlier + (now_ / count_) * count_);
                }
            }
            switch (step.verb) {
            case Verb::run:
                scan_run(step);
                break;
            case Verb::free:
                scan_free(step);
                break;
            case Verb::update:
                scan_update(step);
                break;
            default:
                scan_transfer(step);
            }
            pace.spend(Pace::named +
                       static_cast<std::int64_t>(found_.returns.back().size() + std::exchange(compared_, 0)));
            found_.each.push_back(current_);
        }
    }

    RepeatedSteps take() { return std::move(found_); }

  private:
    struct TensorState {
        StepId made = -1;                          // the step that completes the device copy
        StepId run = -1, offload = -1, fetch = -1; // the last of each that uses or makes the device copy
        StepId host = -1;                          // the offload or update that completes the host copy
        StepId fetched = -1, used = -1;            // the last prefetch from it, and the last update that uses it
        StepId sent = -1;                          // the last offload of any device copy
        bool on_host = false, kept = false;        // has a host copy, and across the border
    };
    struct Return {
        StepId step;
        Bytes bytes;
    };
    struct Awaiting { // a free that waits for transfers
        Return free;
        StepId out, in;       // for which
        StepId run;           // the last run before the free, which it does not precede
        bool used;            // by that run, so that it waits for its end
        std::uint64_t before; // bytes of all listed before it, modulo 2^64
        bool begins = true;   // a group: no free of it or after is earlier than any before; within one, some may be
    };
    using Queue = std::deque<Awaiting>;

    void cross_border() { // host copies of what is not on the host there are dropped
        found_.each.clear();
        found_.waits.clear();
        found_.returns.clear();
        for (TensorState& state : tensors_) {
            state.on_host = state.on_host && state.kept;
        }
    }

    Awaited awaited(StepId step, bool start, Bytes bytes) const { return {step % count_, step < count_, start, bytes}; }

    void wait_for(StepId step, bool start = false) {
        if (step >= 0) {
            found_.waits.push_back(awaited(step, start, 0));
        }
    }

    // Whether the later of two frees is certain not to be earlier: transfers of a direction and runs end in turn.
    static bool in_turn(const Awaiting& earlier, const Awaiting& later) {
        return later.out >= earlier.out && later.in >= earlier.in &&
               (later.run > earlier.run || later.used || !earlier.used);
    }

    void wait_on(StepId& stream) { // and take its place
        wait_for(stream);
        stream = now_;
    }

    void scan_run(const Step& step) {
        const Op& op = graph_.op(step.id);
        const Bytes scratch = workspace(op, step.choice, step.skip);
        wait_on(compute_);
        for (const TensorId t : op.reads) {
            wait_for(tensors_[at(t)].made);
            tensors_[at(t)].run = now_;
        }
        for (const TensorId t : op.updates) {
            TensorState& state = tensors_[at(t)];
            wait_for(state.offload); // what it reads must not change
            state.made = now_;
            state.on_host = false;
        }
        Bytes outputs = 0;
        for (const TensorId t : op.writes) {
            if (!skips(graph_, step, t)) {
                TensorState& state = tensors_[at(t)];
                state.made = state.run = now_;
                state.offload = state.fetch = -1;
                outputs += graph_.tensor(t).bytes;
            }
        }
        reserve(outputs + scratch, true);
        live_ += outputs;
        run_ = now_;
        of_run_ = scratch; // what only earlier runs use is back when this one starts
        current_.time = op.choices[at(step.choice)].time;
        current_.gives = scratch;
    }

    void scan_transfer(const Step& step) {
        TensorState& state = tensors_[at(step.id)];
        const Bytes bytes = graph_.tensor(step.id).bytes;
        const bool out = step.verb == Verb::offload;
        wait_on(!out && device_.duplex ? in_ : link_);
        current_.time = transfer_time(bytes, out ? device_.d2h : device_.h2d, device_.latency);
        if (out) {
            wait_for(state.made);
            state.offload = state.sent = now_;
            if (!state.on_host) {
                wait_for(state.fetched); // they read the copy that is replaced
                wait_for(state.used);
                state.host = now_;
                state.on_host = true;
            }
            return;
        }
        wait_for(state.host);
        state.made = state.fetch = state.fetched = now_;
        state.run = state.offload = -1;
        reserve(bytes, false);
        live_ += bytes;
    }

    void scan_update(const Step& step) {
        const Op& op = graph_.op(step.id);
        wait_on(host_);
        for (const TensorId t : op.reads) {
            wait_for(tensors_[at(t)].host);
            tensors_[at(t)].used = now_;
        }
        for (const auto* changed : {&op.updates, &op.writes}) {
            for (const TensorId t : *changed) {
                TensorState& state = tensors_[at(t)];
                wait_for(state.fetched); // what it reads must not change,
                wait_for(state.sent);    // nor what this writes be overwritten
                state.host = now_;
                state.on_host = true;
            }
        }
        current_.time = *op.host_time;
    }

    void scan_free(const Step& step) {
        const TensorState& state = tensors_[at(step.id)];
        const Bytes bytes = graph_.tensor(step.id).bytes;
        wait_for(state.run);
        wait_for(state.offload);
        const bool fetched_for_nothing = state.run < 0 && state.fetch >= 0; // else a run has waited for the prefetch
        if (fetched_for_nothing) {
            wait_for(state.fetch);
        }
        live_ -= bytes;
        current_.gives = bytes;
        if (bytes > 0 && (state.offload >= 0 || fetched_for_nothing)) {
            const StepId in = fetched_for_nothing ? state.fetch : -1;
            const Awaiting now{{now_, bytes}, state.offload, in, run_, state.run == run_, freed_};
            of_link_.push_back(now);
            join_groups();
            freed_ += static_cast<std::uint64_t>(bytes);
        } else if (bytes > 0 && state.run >= 0 && state.run == run_) {
            of_run_ += bytes; // not before the run ends, and then at once
        }
    }

    // E7. The bytes that may still be awaited when the step starts.
    void reserve(Bytes bytes, bool is_run) {
        current_.takes = bytes;
        while (!of_link_.empty() && of_link_.front().free.step <= now_ - count_) {
            of_link_.pop_front(); // E9
        }
        const Bytes of_run = is_run ? 0 : of_run_;
        const Bytes of_link = of_link_.empty() ? 0 : static_cast<Bytes>(freed_ - of_link_.front().before);
        Bytes lacking = of_link + of_run - (capacity_ - live_ - bytes);
        if (bytes == 0 || lacking <= 0) {
            return;
        }
        auto first = of_link_.begin(), end = of_link_.end();
        if (first != end) { // groups come in turn, so the first ones
            end = group_end(first_after(lacking));
            if (lacking > of_run) { // .. of which these are enough in no case
                const auto next = first_after(lacking - of_run);
                const auto group = group_of(std::prev(next));
                first = std::next(group) == group_end(next) ? next : group; // of several, some may be enough
                if (first != of_link_.begin()) {
                    for (auto one = group_of(std::prev(first)); one != first; ++one) {
                        wait_for(one->free.step);
                    }
                    lacking -= static_cast<Bytes>(before(first) - of_link_.front().before);
                }
            }
        }
        Bytes listed = 0;
        const auto add = [&](const Return& one) {
            listed += one.bytes;
            found_.returns.push_back(awaited(one.step, false, one.bytes));
        };
        if (lacking > 0) {
            std::for_each(first, end, [&](const Awaiting& one) { add(one.free); });
            if (of_run > 0) {
                add({run_, of_run});
            }
            current_.may_lack = listed - lacking;
        }
        if (is_run) { // E1: no later step starts earlier
            of_link_.erase(of_link_.begin(), first);
        }
    }

    // The last one joins the groups of which some may be later.
    void join_groups() {
        const Awaiting& last = of_link_.back();
        auto begin = std::prev(of_link_.end());
        while (begin != of_link_.begin()) {
            const auto group = group_of(std::prev(begin));
            compared_ += static_cast<std::size_t>(begin - group);
            if (std::all_of(group, begin, [&](const Awaiting& one) { return in_turn(one, last); })) {
                break;
            }
            begin->begins = false;
            begin = group;
        }
    }

    Queue::iterator group_of(Queue::iterator one) {
        while (one != of_link_.begin() && !one->begins) {
            --one;
        }
        return one;
    }

    Queue::iterator group_end(Queue::iterator one) {
        return std::find_if(one, of_link_.end(), [](const Awaiting& other) { return other.begins; });
    }

    // The end of the fewest first ones that hold that many bytes.
    Queue::iterator first_after(Bytes bytes) {
        const std::uint64_t all = of_link_.front().before;
        return std::ranges::partition_point(
            of_link_, [&](const Awaiting& one) { return static_cast<Bytes>(one.before - all) < bytes; });
    }

    std::uint64_t before(Queue::iterator one) const { return one == of_link_.end() ? freed_ : one->before; }

    const Graph& graph_;
    const StepList& list_;
    const Device& device_;
    Bytes capacity_, live_;
    std::vector<TensorState> tensors_;
    StepId count_; // steps of a repetition
    RepeatedSteps found_;
    RepeatedStep current_;
    StepId now_ = 0;
    StepId run_ = -1, compute_ = -1, link_ = -1, in_ = -1, host_ = -1; // the last run, and the last of each stream
    Queue of_link_;            // frees that wait for transfers, and may still do
    std::size_t compared_ = 0; // of them, since the step before
    std::uint64_t freed_ = 0;  // bytes of all that ever were there, modulo 2^64
    Bytes of_run_ = 0;         // that the last run uses, and gives back
};

} // namespace

Bytes bytes_at_border(const Graph& graph, const StepList& list) {
    Bytes bytes = source_bytes(graph);
    for (const auto& [tensor, copies] : list.border) {
        bytes -= copies == Copies::host ? graph.tensor(tensor).bytes : 0;
    }
    return bytes;
}

RepeatedSteps repeated_steps(const Graph& graph, const StepList& list, const Device& device, Bytes capacity,
                             Pace& pace) {
    return RepetitionScan(graph, list, device, capacity, pace).take();
}

} // namespace memsched
