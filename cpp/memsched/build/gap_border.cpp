// Of GapBuilder: persistent tensors, of which those that have to leave across the border are on the host there.
#include "memsched/build/gap_builder.h"

#include <algorithm>

namespace memsched {
namespace {

constexpr int most_passes = 12; // each finds more tensors that leave across the border

} // namespace

void GapBuilder::find_hosted() {
    for (auto* flags : {&changed_there_, &ends_there_, &read_here_}) {
        flags->assign(facts_.size(), 0);
    }
    for (OpId op = 0; at(op) < graph_.ops().size(); ++op) {
        const std::uint8_t there = hosted(op) ? 1 : 0;
        for (const TensorId t : graph_.op(op).reads) {
            read_here_[at(t)] |= there ? 0 : 1;
            ends_there_[at(t)] &= there;
        }
        for (const TensorId t : graph_.op(op).updates) {
            changed_there_[at(t)] = ends_there_[at(t)] = there;
        }
    }
}

// At first what an op on the host leaves there, those that are to be swapped, as long as the host has room, and those
// that no op reads. False if the host has no room for the first.
bool GapBuilder::choose_border() {
    for (auto* flags : {&away_, &backed_, &crossed_}) {
        flags->assign(facts_.size(), 0);
    }
    find_hosted();
    host_left_ = device_.host_memory.value_or(std::numeric_limits<Bytes>::max());
    for (const TensorId t : persistent_) {
        away_[at(t)] = ends_there_[at(t)];
        host_left_ -= away_[at(t)] ? fact(t).bytes : 0;
    }
    if (host_left_ < 0 || (!link_ && std::ranges::find(hosted_, 1) != hosted_.end())) {
        return false;
    }
    for (const TensorId t : persistent_) {
        const Fact& known = fact(t);
        const bool swapped = known.gaps > 0 && classes_[at(known.first_gap + known.gaps - 1)] == MapClass::swap;
        if (!away_[at(t)] && known.bytes <= host_left_ && (!read_here_[at(t)] || (swapped && link_))) {
            away_[at(t)] = 1;
            host_left_ -= known.bytes;
        }
    }
    return true;
}

// What the host has no copy of is sent, as early as it is there; what the op changes is on the host alone.
bool GapBuilder::update_on_host(OpId id) {
    const Op& op = graph_.op(id);
    for (const TensorId t : op.reads) {
        if (state(t).on_host) {
            continue;
        }
        if (fact(t).persistent && (state(t).changed_there || !fact(t).updated)) {
            backed_[at(t)] = 1; // it has had its copy since before
        } else {
            if (!bring(t) || !may_travel(t)) {
                return false;
            }
            outline_.events.push_back({PlanEvent::offload, t});
            link_free_ = sent(t);
        }
        host_left_ -= state(t).kept ? 0 : fact(t).bytes;
        state(t).on_host = state(t).kept = true;
    }
    for (const TensorId t : op.updates) {
        if (state(t).here) {
            drop(t);
        }
        state(t).changed_there = true;
    }
    for (const TensorId t : op.writes) { // without bytes
        state(t).on_host = true;
        wanted_.set(t, true);
    }
    outline_.events.push_back({PlanEvent::update, id});
    return true;
}

bool GapBuilder::crosses_border(TensorId tensor) {
    const State& s = state(tensor);
    return fact(tensor).persistent && !away_[at(tensor)] && (!s.used || wanted_.next(tensor) == Wanted::never);
}

bool GapBuilder::sends(TensorId tensor) {
    const Fact& known = fact(tensor);
    const State& s = state(tensor);
    return !s.on_host && (!known.persistent || (known.updated && s.used && !s.changed_there));
}

Seconds GapBuilder::wait_across_border(TensorId tensor) const {
    return fact(tensor).first >= 0 ? begin_[at(fact(tensor).first)] : 0;
}

// What leaves before its first read has left before the border, but for that it need not wait now.
GapBuilder::Price GapBuilder::price_of_persistent(TensorId tensor) {
    const Fact& known = fact(tensor);
    const double bytes = static_cast<double>(known.bytes);
    if (!read_here_[at(tensor)] || !may_travel(tensor)) {
        return {Wanted::impossible, true};
    }
    const bool once = state(tensor).on_host || !known.updated; // it travels to the device alone
    const Seconds wait = sends(tensor) ? std::max(sent(tensor) - clock_, 0.0) : 0;
    return {eviction_.travel * bytes / (once ? 2 : 1) + wait, true};
}

void GapBuilder::close_repetition() {
    for (std::size_t k = 0; k < state_.size(); ++k) {
        const auto t = static_cast<TensorId>(k);
        if (facts_[k].persistent) {
            if (!away_[k] && !state_[k].here) {
                crossed_[k] = 1;
            } else if (away_[k] && state_[k].here) { // an op that ran again has read it
                send(t);
            }
        } else if (state_[k].here && !graph_.tensor(t).source()) {
            drop(t);
        }
    }
}

std::vector<Copies> GapBuilder::border() const {
    std::vector<Copies> border(facts_.size(), Copies::device);
    for (const TensorId t : persistent_) {
        border[at(t)] = away_[at(t)] ? Copies::host : backed_[at(t)] ? Copies::both : Copies::device;
    }
    return border;
}

bool GapBuilder::build_repeated(StepList& list) {
    if (!choose_border()) {
        return false;
    }
    for (int passes = 0; passes < most_passes; ++passes) {
        std::ranges::fill(crossed_, 0);
        const bool fits = pass();
        const bool closed = std::ranges::find(crossed_, 1) == crossed_.end();
        if (!closed) {
            for (const TensorId t : persistent_) {
                away_[at(t)] |= crossed_[at(t)];
            }
            continue;
        }
        if (!fits) {
            return false;
        }
        advance_events();
        return places_.list_repeated(outline_, border(), capacity_, list);
    }
    return false;
}

} // namespace memsched
