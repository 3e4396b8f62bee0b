#include "memsched/build/class_builder.h"

#include <algorithm>
#include <limits>

namespace memsched {
namespace {

constexpr std::size_t between_questions = 4096; // tensors that repeated runs bring between two calls of hopeless_

} // namespace

ClassBuilder::ClassBuilder(const Graph& graph)
    : graph_(graph), lifetimes_(graph), places_(graph, lifetimes_.turn), maps_(feature_maps(graph, lifetimes_)),
      facts_(graph.tensors().size()), uses_(readers_of(graph, lifetimes_.turn)), forward_end_(graph.ops().size()),
      last_read_(graph.ops().size()) {
    const OpId turn = lifetimes_.turn;
    for (std::size_t t = 0; t < facts_.size(); ++t) {
        Fact& known = facts_[t];
        const Role role = graph.tensors()[t].role;
        known.bytes = graph.tensors()[t].bytes;
        known.stays = lifetimes_.last_use[t] < 0 || lifetimes_.empty[t]; // nothing is gained by dropping it
        known.input = role == Role::input || role == Role::weight;
        known.uses = uses_[t];
        if (lifetimes_.last_use[t] >= turn) {
            last_read_[at(lifetimes_.last_use[t])].push_back(static_cast<TensorId>(t));
        }
    }
    for (const TensorId t : maps_) {
        fact(t).map = true;
    }
    for (const Op& op : graph.ops()) {
        made_.push_back(written_bytes(graph, op) + op.choices[0].workspace);
    }
    std::vector<std::uint8_t> used(facts_.size(), 0); // by a later op of the forward
    for (OpId op = turn; op-- > 0;) {
        for (const std::vector<TensorId>* side : {&graph.op(op).reads, &graph.op(op).writes}) {
            for (const TensorId t : *side) {
                if (!used[at(t)]) {
                    used[at(t)] = 1;
                    forward_end_[at(op)].push_back(t);
                }
            }
        }
    }
}

void ClassBuilder::reset(std::span<const MapClass> classes, Bytes capacity) {
    capacity_ = capacity;
    live_ = most_of_forward_ = most_ = 0;
    repeats_ = std::ranges::find(classes, MapClass::recompute) != classes.end();
    state_.assign(facts_.size(), {});
    for (std::size_t t = 0; t < state_.size(); ++t) {
        state_[t].here = graph_.tensors()[t].source();
        live_ += state_[t].here ? facts_[t].bytes : 0;
    }
    for (std::size_t m = 0; m < maps_.size(); ++m) {
        state(maps_[m]).kind = classes[m];
    }
    ran_.assign(graph_.ops().size(), 0);
    outline_.events.clear();
    scarce_ = false;
    yielding_ = {};
    passing_.clear();
    order_.clear();
    repeated_ = brought_ = 0;
    depth_ = 0;
}

void ClassBuilder::arrive(TensorId tensor) {
    state(tensor).here = true;
    live_ += fact(tensor).bytes;
    may_yield(tensor);
}

void ClassBuilder::may_yield(TensorId tensor) {
    if (scarce_ && fact(tensor).map && state(tensor).here && state(tensor).kind != MapClass::keep) {
        yielding_.push({next_use(tensor), fact(tensor).bytes, tensor});
    }
}

void ClassBuilder::drop(TensorId tensor) {
    outline_.events.push_back({PlanEvent::free, tensor});
    state(tensor).here = false;
    live_ -= fact(tensor).bytes;
}

bool ClassBuilder::has_room(Bytes bytes) {
    const bool fits = live_ + bytes <= capacity_;
    most_ = fits ? std::max(most_, live_ + bytes) : most_;
    return fits;
}

bool ClassBuilder::forward() {
    if (!has_room(0)) {
        return false;
    }
    for (OpId op = 0; op < lifetimes_.turn; ++op) {
        outline_.events.push_back({PlanEvent::run, op});
        ran_[at(op)] = 1;
        for (const TensorId t : graph_.op(op).writes) {
            state(t).here = true;
            live_ += fact(t).bytes;
        }
        if (!has_room(graph_.op(op).choices[0].workspace)) {
            return false;
        }
        for (const TensorId t : forward_end_[at(op)]) {
            const Fact& known = fact(t);
            if (known.map && state(t).kind != MapClass::keep) {
                if (state(t).kind == MapClass::swap) {
                    outline_.events.push_back({PlanEvent::offload, t});
                    state(t).on_host = true;
                }
                drop(t);
            } else if (known.uses.empty() && !known.stays && !(known.input && repeats_)) {
                drop(t);
            }
        }
    }
    most_of_forward_ = most_;
    return true;
}

OpId ClassBuilder::next_use(TensorId tensor) {
    const IdLists::Ids uses = fact(tensor).uses;
    std::uint32_t& next = state(tensor).use;
    while (next < uses.size() && uses[next] < now_) {
        ++next;
    }
    return next < uses.size() ? uses[next] : static_cast<OpId>(graph_.ops().size());
}

bool ClassBuilder::make_room(Bytes bytes) {
    if (has_room(bytes)) {
        return true;
    }
    if (!scarce_) {
        scarce_ = true;
        std::ranges::for_each(maps_, [this](TensorId t) { may_yield(t); });
    }
    while (live_ + bytes > capacity_ && !yielding_.empty()) {
        const Yielding latest = yielding_.top();
        yielding_.pop();
        if (!state(latest.tensor).here || latest.use != next_use(latest.tensor)) {
            continue;
        }
        if (state(latest.tensor).locks > 0) {
            locked_.push_back(latest);
        } else {
            drop(latest.tensor);
        }
    }
    for (const Yielding& one : locked_) {
        yielding_.push(one);
    }
    locked_.clear();
    return has_room(bytes);
}

bool ClassBuilder::bring(TensorId tensor) {
    if (state(tensor).here) {
        return true;
    }
    if (!state(tensor).on_host) {
        const OpId writer = graph_.writer(tensor);
        return writer >= 0 && run(writer);
    }
    if (!make_room(fact(tensor).bytes)) {
        return false;
    }
    outline_.events.push_back({PlanEvent::fetch, tensor});
    passing_.push_back(tensor);
    arrive(tensor);
    return true;
}

bool ClassBuilder::run(OpId id) {
    const Op& op = graph_.op(id);
    // If memory is so scarce that tensors are dropped before their use, runs could repeat forever.
    const std::size_t most = 64 * graph_.ops().size();
    repeated_ += ran_[at(id)];
    if ((ran_[at(id)] && op.once) || repeated_ > most || depth_ >= deepest_run) {
        return false;
    }
    if (ran_[at(id)] && (brought_ += 1 + op.reads.size()) >= between_questions) {
        brought_ = 0;
        if (hopeless_ && hopeless_()) {
            return false;
        }
    }
    ++depth_;
    const bool done = run_op(id, op);
    --depth_;
    return done;
}

bool ClassBuilder::bring_reads(const Op& op) {
    if (std::ranges::all_of(op.reads, [this](TensorId t) { return state(t).here; })) {
        std::ranges::for_each(op.reads, [this](TensorId t) { ++state(t).locks; });
        return true;
    }
    // Recompute first: that needs the most room, and writes again what is there.
    const std::size_t first = order_.size();
    for (const int rank : {0, 1, 2}) {
        for (const TensorId t : op.reads) {
            const bool again = !fact(t).map || state(t).kind == MapClass::recompute;
            if ((again ? static_cast<int>(state(t).here) : 2) == rank) {
                order_.push_back(t);
            }
        }
    }
    for (std::size_t i = first; i < first + op.reads.size(); ++i) {
        const TensorId t = order_[i]; // nested runs add to order_
        if (!bring(t)) {
            return false;
        }
        ++state(t).locks;
    }
    order_.resize(first);
    return true;
}

bool ClassBuilder::run_op(OpId id, const Op& op) {
    if (!bring_reads(op)) {
        return false;
    }
    for (const TensorId t : op.writes) {
        if (state(t).here) { // another output of a repeated op
            if (state(t).locks > 0) {
                return false;
            }
            drop(t);
        }
    }
    if (!make_room(made_[at(id)])) {
        return false;
    }
    outline_.events.push_back({PlanEvent::run, id});
    for (const TensorId t : op.writes) {
        arrive(t);
        if (id < lifetimes_.turn) {
            passing_.push_back(t);
        }
    }
    ran_[at(id)] = 1;
    for (const TensorId t : op.reads) {
        --state(t).locks;
    }
    return true;
}

bool ClassBuilder::done_with(TensorId tensor) {
    const Fact& known = fact(tensor);
    return !known.stays && !(known.input && repeats_) && (known.uses.empty() || known.uses.back() <= now_);
}

bool ClassBuilder::backward() {
    for (now_ = lifetimes_.turn; at(now_) < graph_.ops().size();) {
        const std::vector<TensorId>& reads = graph_.op(now_).reads;
        if (!run(now_)) {
            return false;
        }
        passing_.insert(passing_.end(), last_read_[at(now_)].begin(), last_read_[at(now_)].end());
        std::ranges::sort(passing_);
        for (const TensorId t : passing_) {
            if (state(t).here && done_with(t)) {
                drop(t);
            }
        }
        passing_.clear();
        ++now_;
        for (const TensorId t : reads) { // their next use has changed
            may_yield(t);
        }
    }
    return true;
}

bool ClassBuilder::fits(std::span<const MapClass> classes, Bytes capacity) {
    reset(classes, capacity);
    return forward() && backward();
}

bool ClassBuilder::build(std::span<const MapClass> classes, Bytes capacity, const FetchRule& rule, StepList& list) {
    if (!fits(classes, capacity)) {
        return false;
    }
    places_.attribute(outline_);
    return places_.list(outline_, capacity, rule, {}, list);
}

Bytes least_budget(const Graph& graph, std::span<const MapClass> classes) {
    ClassBuilder plans(graph);
    plans.fits(classes, std::numeric_limits<Bytes>::max());
    Bytes low = plans.most_of_forward() - 1, high = plans.most();                   // there is no choice in the forward
    for (Bytes middle = low + 1; high - low > 1; middle = low + (high - low) / 2) { // mostly the forward needs the most
        (plans.fits(classes, middle) ? high : low) = middle;
    }
    return graph.resident() + high;
}

} // namespace memsched
