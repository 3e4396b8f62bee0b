#include "memsched/build/wanted.h"

#include <algorithm>
#include <bit>

namespace memsched {
namespace {

constexpr std::size_t many = 64; // readers of a tensor, such as a weight that all layers share

} // namespace

Wanted::Wanted(const Graph& graph) : graph_(graph), readers_(readers_of(graph)), uses_(readers_.size()) {
    for (std::size_t t = 0; t < uses_.size(); ++t) {
        if (readers_[t].size() > many) {
            uses_[t].crowd = static_cast<std::int32_t>(crowds_.size());
            crowds_.emplace_back();
        }
    }
    if (graph.persistent()) {
        before_.assign(graph.ops().size(), never);
        for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
            for (const TensorId t : graph.op(op).updates) {
                for (const OpId reader : readers_[at(t)]) {
                    before_[at(reader)] = reader < op ? std::min(before_[at(reader)], op) : before_[at(reader)];
                }
            }
        }
    }
    demands_.bits.resize(graph.ops().size() / 64 + 1);
}

void Wanted::Due::add(OpId op) {
    const std::size_t word = at(op) / 64;
    bits[word] |= std::uint64_t{1} << (at(op) % 64);
    low = std::min(low, word);
    high = std::max(high, word);
}

void Wanted::reset(OpId last) {
    now_ = 0;
    last_ = last;
    at_hand_.assign(uses_.size(), 1);
    next_.resize(uses_.size());
    for (std::size_t t = 0; t < uses_.size(); ++t) {
        uses_[t].next = 0;
        next_[t] = readers_[t].empty() ? never : readers_[t].front();
    }
    cost_.resize(graph_.ops().size());
    stale_.assign(graph_.ops().size(), 1);
    in_time_ = before_;
    demand_.assign(graph_.ops().size(), never);
    std::ranges::fill(crowds_, Crowd{});
    std::ranges::fill(demands_.bits, 0);
    demands_.settled();
}

void Wanted::update_next(TensorId tensor) {
    const IdLists::Ids readers = readers_[at(tensor)];
    const std::size_t next = uses_[at(tensor)].next;
    const OpId first = next < readers.size() ? readers[next] : never;
    next_[at(tensor)] = std::min(first, least_demand(tensor)); // those that have run may run again
}

OpId Wanted::least_demand(TensorId tensor) {
    const Uses& uses = uses_[at(tensor)];
    OpId found = never;
    if (uses.crowd < 0) {
        for (const OpId reader : readers_[at(tensor)].first(uses.next)) {
            found = std::min(found, demand_[at(reader)]);
        }
        return found;
    }
    Crowd& crowd = crowds_[at(uses.crowd)];
    while (!crowd.empty() && demand_[at(crowd.top().second)] != crowd.top().first) {
        crowd.pop();
    }
    return crowd.empty() ? never : crowd.top().first;
}

// A reader that has run is wanted for another op than before.
void Wanted::demanded(TensorId tensor, OpId reader) {
    const Uses& uses = uses_[at(tensor)];
    if (uses.crowd >= 0 && demand_[at(reader)] != never) {
        crowds_[at(uses.crowd)].emplace(demand_[at(reader)], reader);
    }
}

void Wanted::ran() {
    settle_demands();
    for (const TensorId t : graph_.op(now_).reads) {
        const IdLists::Ids readers = readers_[at(t)];
        std::uint32_t& next = uses_[at(t)].next;
        while (next < readers.size() && readers[next] <= now_) {
            ++next;
        }
        demanded(t, now_);
        update_next(t);
    }
    ++now_;
    for (const TensorId t : graph_.op(now_ - 1).updates) { // what has read it before does not run again
        cost_changed(t);
    }
}

void Wanted::set(TensorId tensor, bool at_hand) {
    if (at_hand_[at(tensor)] == at_hand) {
        return;
    }
    at_hand_[at(tensor)] = at_hand;
    cost_changed(tensor);
    if (const OpId writer = graph_.writer(tensor); writer >= 0) {
        demands_.add(writer);
    }
}

// So may those of all behind them, as far as nothing there is at hand. What is out of date already stands for all that.
void Wanted::cost_changed(TensorId tensor) {
    pending_.push_back(tensor);
    while (!pending_.empty()) {
        const TensorId next = pending_.back();
        pending_.pop_back();
        for (const OpId reader : readers_[at(next)]) {
            if (reader >= now_) {
                break;
            }
            ++work_;
            if (stale_[at(reader)] || never_again(reader)) {
                continue;
            }
            stale_[at(reader)] = 1;
            for (const TensorId t : graph_.op(reader).writes) {
                if (!at_hand_[at(t)]) {
                    pending_.push_back(t);
                }
            }
        }
    }
}

void Wanted::update_cost(OpId op) {
    const bool timed = !before_.empty();
    Seconds cost = own(op);
    OpId in_time = timed ? before_[at(op)] : never;
    for (const TensorId t : graph_.op(op).reads) {
        if (at_hand_[at(t)]) {
            continue;
        }
        const OpId writer = graph_.writer(t);
        cost += writer < 0 ? impossible : cost_[at(writer)];
        in_time = timed && writer >= 0 ? std::min(in_time, in_time_[at(writer)]) : in_time;
    }
    cost_[at(op)] = cost;
    if (timed) {
        in_time_[at(op)] = in_time;
    }
    stale_[at(op)] = 0;
}

// Those that it depends on come first.
void Wanted::settle_cost(OpId op) {
    due_.push_back(op);
    while (!due_.empty()) {
        const OpId last = due_.back();
        const std::size_t before = due_.size();
        const bool known = never_again(last);
        work_ += 4 + static_cast<std::int64_t>(graph_.op(last).reads.size());
        for (const TensorId t : graph_.op(last).reads) {
            const OpId writer = graph_.writer(t);
            if (!known && writer >= 0 && !at_hand_[at(t)] && stale_[at(writer)]) {
                due_.push_back(writer);
            }
        }
        if (due_.size() == before) {
            update_cost(last);
            due_.pop_back();
        }
    }
}

void Wanted::update_demand(OpId op) {
    work_ += 4 + static_cast<std::int64_t>(graph_.op(op).reads.size() + graph_.op(op).writes.size());
    OpId demand = never;
    for (const TensorId t : graph_.op(op).writes) {
        demand = at_hand_[at(t)] ? demand : std::min(demand, next_[at(t)]);
    }
    if (demand == demand_[at(op)]) {
        return;
    }
    demand_[at(op)] = demand;
    for (const TensorId t : graph_.op(op).reads) {
        if (op < now_) {
            demanded(t, op);
        }
        update_next(t);
        if (graph_.writer(t) >= 0 && !at_hand_[at(t)]) {
            demands_.add(graph_.writer(t));
        }
    }
}

void Wanted::settle_demands() { // downwards, since an op reads what earlier ones write
    for (std::size_t word = demands_.high + 1; word-- > demands_.low;) {
        std::uint64_t& bits = demands_.bits[word];
        while (bits != 0) {
            const int bit = 63 - std::countl_zero(bits);
            bits &= ~(std::uint64_t{1} << bit);
            update_demand(static_cast<OpId>(word * 64) + bit);
        }
    }
    demands_.settled();
}

Seconds Wanted::again(TensorId tensor) {
    const OpId writer = graph_.writer(tensor);
    if (writer >= 0 && stale_[at(writer)]) {
        settle_cost(writer);
    }
    if (writer >= 0 && !before_.empty() && next(tensor) != never && in_time_[at(writer)] < next(tensor)) {
        return impossible;
    }
    return writer < 0 ? impossible : cost_[at(writer)];
}

} // namespace memsched
