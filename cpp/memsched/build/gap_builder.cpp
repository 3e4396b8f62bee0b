#include "memsched/build/gap_builder.h"

#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <limits>

namespace memsched {
namespace {

constexpr std::size_t most_repeats = 8; // runs per op, on average
constexpr OpId none = std::numeric_limits<OpId>::max();

} // namespace

GapBuilder::GapBuilder(const Graph& graph, bool link)
    : graph_(graph), link_(link), places_(graph, Lifetimes(graph).turn), facts_(graph.tensors().size()) {
    const auto ops = static_cast<OpId>(graph.ops().size());
    std::vector<OpId> last(facts_.size(), -1);
    std::vector<std::vector<Gap>> gaps(facts_.size());
    for (OpId op = 0; op < ops; ++op) {
        for (const TensorId t : graph.op(op).writes) {
            last[at(t)] = op;
        }
        for (const TensorId t : graph.op(op).reads) {
            if (op > last[at(t)] + 1) {
                gaps[at(t)].push_back({t, last[at(t)], op});
            }
            last[at(t)] = op;
        }
    }
    for (std::size_t t = 0; t < facts_.size(); ++t) {
        Fact& known = facts_[t];
        const Tensor& tensor = graph.tensors()[t];
        const auto id = static_cast<TensorId>(t);
        known.bytes = tensor.bytes;
        known.again = graph.writer(id) >= 0 && !graph.op(graph.writer(id)).once;
        known.result = !graph.read(id) && !graph.taped(id) && !tensor.source();
        known.stays = known.result || (tensor.role == Role::weight && !graph.read(id));
        known.first_gap = static_cast<std::int32_t>(gaps_.size());
        if (last[t] + 1 < ops && (graph.read(id) || known.result)) {
            gaps[t].push_back({id, last[t], ops});
        }
        if (tensor.bytes > 0) {
            gaps_.insert(gaps_.end(), gaps[t].begin(), gaps[t].end());
        }
        known.gaps = static_cast<std::int32_t>(gaps_.size()) - known.first_gap;
        if (tensor.role == Role::input && !graph.read(id) && tensor.bytes > 0) {
            unread_.push_back(id);
        }
        if (known.gaps > 0 && gaps_[at(known.first_gap)].from < 0) {
            early_.push_back(id);
        }
    }
}

void GapBuilder::reset() {
    live_ = 0;
    state_.assign(facts_.size(), {});
    for (std::size_t t = 0; t < state_.size(); ++t) {
        state_[t].here = graph_.tensors()[t].source();
        state_[t].kept = true;
        live_ += state_[t].here ? facts_[t].bytes : 0;
        state_[t].demand = foresees_ ? 0 : first_demand_[t];
    }
    outline_.events.clear();
    yielding_.clear();
    passing_.clear();
    scarce_ = false;
    depth_ = 0;
    repeated_ = 0;
}

void GapBuilder::collect_demands() {
    first_demand_.assign(facts_.size() + 1, 0);
    for (const auto& [tensor, op] : asked_) {
        ++first_demand_[at(tensor) + 1];
    }
    for (std::size_t t = 0; t < facts_.size(); ++t) {
        first_demand_[t + 1] += first_demand_[t];
    }
    demands_.resize(asked_.size());
    std::vector<std::int32_t> next(first_demand_.begin(), first_demand_.end() - 1);
    for (const auto& [tensor, op] : asked_) {
        demands_[at(next[at(tensor)]++)] = op;
    }
}

OpId GapBuilder::next_demand(TensorId tensor, OpId from) {
    State& s = state(tensor);
    const std::int32_t beyond = first_demand_[at(tensor) + 1];
    while (s.demand < beyond && demands_[at(s.demand)] < from) {
        ++s.demand;
    }
    return s.demand < beyond ? demands_[at(s.demand)] : none;
}

void GapBuilder::may_yield(TensorId tensor) {
    const State& s = state(tensor);
    if (scarce_ && s.here && fact(tensor).bytes > 0 && (fact(tensor).again || s.on_host || link_)) {
        yielding_.push_back({!s.kept, next_demand(tensor, now_), tensor});
        std::push_heap(yielding_.begin(), yielding_.end());
    }
}

void GapBuilder::arrive(TensorId tensor) {
    state(tensor).here = true;
    live_ += fact(tensor).bytes;
    may_yield(tensor);
}

void GapBuilder::drop(TensorId tensor) {
    outline_.events.push_back({PlanEvent::free, tensor});
    state(tensor).here = false;
    live_ -= fact(tensor).bytes;
}

void GapBuilder::send(TensorId tensor) {
    if (!state(tensor).on_host) {
        outline_.events.push_back({PlanEvent::offload, tensor});
        state(tensor).on_host = true;
    }
    drop(tensor);
}

bool GapBuilder::make_room(Bytes bytes) {
    if (foresees_ || live_ + bytes <= capacity_) {
        return true;
    }
    if (!scarce_) {
        scarce_ = true;
        for (std::size_t t = 0; t < state_.size(); ++t) {
            may_yield(static_cast<TensorId>(t));
        }
    }
    while (live_ + bytes > capacity_ && !yielding_.empty()) {
        std::pop_heap(yielding_.begin(), yielding_.end());
        const Yielding latest = yielding_.back();
        yielding_.pop_back();
        const TensorId t = latest.tensor;
        if (!state(t).here || latest.demand != next_demand(t, now_) || latest.passing == state(t).kept) {
            continue;
        }
        if (state(t).locks > 0) {
            locked_.push_back(latest);
        } else if (link_ && !state(t).on_host && (state(t).kept || !fact(t).again)) {
            send(t);
        } else if (state(t).on_host || (fact(t).again && !fact(t).result)) {
            drop(t);
        }
    }
    for (const Yielding& one : locked_) {
        yielding_.push_back(one);
        std::push_heap(yielding_.begin(), yielding_.end());
    }
    locked_.clear();
    return live_ + bytes <= capacity_;
}

bool GapBuilder::bring(TensorId tensor) {
    if (foresees_) {
        asked_.emplace_back(tensor, now_);
    }
    if (state(tensor).here) {
        return true;
    }
    if (!state(tensor).on_host) {
        return fact(tensor).again && run(graph_.writer(tensor), tensor);
    }
    if (!make_room(fact(tensor).bytes)) {
        return false;
    }
    outline_.events.push_back({PlanEvent::fetch, tensor});
    state(tensor).kept = false;
    passing_.push_back(tensor);
    arrive(tensor);
    return true;
}

bool GapBuilder::run(OpId id, TensorId wanted) {
    repeated_ += wanted >= 0;
    if (repeated_ > most_repeats * graph_.ops().size() || depth_ >= deepest_run) {
        return false;
    }
    ++depth_;
    const bool done = run_op(id, wanted);
    --depth_;
    return done;
}

// A run leaves out its tape if nobody wants any of it then: it is not what an op runs again for, or all of it is to be
// recomputed later.
bool GapBuilder::skips_tape(const Op& op, TensorId wanted) {
    if (op.tape.empty()) {
        return false;
    }
    bool unread = true;
    for (const TensorId t : op.tape) {
        const Fact& known = fact(t);
        unread = unread && !graph_.read(t);
        if (t == wanted || (op.once && graph_.read(t))) {
            return false;
        }
        const bool later = known.gaps > 0 && gaps_[at(known.first_gap)].from == graph_.writer(t) &&
                           classes_[at(known.first_gap)] == MapClass::recompute;
        if (wanted < 0 && graph_.read(t) && !later) {
            return false;
        }
        if (wanted >= 0 && !foresees_ && !state(t).here && graph_.read(t) && next_demand(t, now_) == now_) {
            return false; // it is wanted for the same op
        }
    }
    return !unread || run_bytes(graph_, op, true) < run_bytes(graph_, op, false);
}

bool GapBuilder::run_op(OpId id, TensorId wanted) {
    const Op& op = graph_.op(id);
    std::vector<TensorId> recomputed;
    for (const TensorId t : op.reads) { // first: that needs the most room
        if (!state(t).here && !state(t).on_host) {
            if (!bring(t)) {
                return false;
            }
            ++state(t).locks;
            recomputed.push_back(t);
        }
    }
    for (const TensorId t : op.reads) {
        if (std::find(recomputed.begin(), recomputed.end(), t) == recomputed.end()) {
            if (!bring(t)) {
                return false;
            }
            ++state(t).locks;
        }
    }
    const bool skip = skips_tape(op, wanted);
    const auto written = [&](TensorId t) {
        return !skip || std::find(op.tape.begin(), op.tape.end(), t) == op.tape.end();
    };
    for (const TensorId t : op.writes) {
        if (state(t).here && written(t)) { // another output of an op that runs again
            if (state(t).locks > 0) {
                return false;
            }
            drop(t);
        }
    }
    if (!make_room(run_bytes(graph_, op, skip))) {
        return false;
    }
    outline_.events.push_back({PlanEvent::run, id, skip});
    for (const TensorId t : op.writes) {
        if (written(t)) {
            state(t).kept = wanted < 0;
            arrive(t);
            if (wanted >= 0) {
                passing_.push_back(t);
            }
        }
    }
    for (const TensorId t : op.reads) {
        --state(t).locks;
    }
    return true;
}

void GapBuilder::begin(TensorId tensor, MapClass kind) {
    State& s = state(tensor);
    s.kept = kind == MapClass::keep;
    if (!s.here || s.kept) {
        return;
    }
    if (kind == MapClass::swap) {
        send(tensor);
    } else if (fact(tensor).again && !fact(tensor).result) {
        drop(tensor);
    } else if (s.on_host) {
        drop(tensor);
    } else {
        s.kept = true; // it cannot come back otherwise
    }
}

void GapBuilder::touch(TensorId tensor, OpId op) {
    const Fact& known = fact(tensor);
    State& s = state(tensor);
    while (s.gap < known.gaps && gaps_[at(known.first_gap + s.gap)].from < op) {
        ++s.gap;
    }
    if (!foresees_ && !known.stays && s.here && next_demand(tensor, op + 1) == none) {
        drop(tensor);
        return;
    }
    s.kept = true;
    if (s.gap < known.gaps && gaps_[at(known.first_gap + s.gap)].from == op) {
        begin(tensor, classes_[at(known.first_gap + s.gap)]);
    }
    may_yield(tensor);
}

bool GapBuilder::pass(std::span<const MapClass> classes) {
    classes_ = classes;
    reset();
    now_ = 0;
    if (!foresees_ && live_ > capacity_) {
        return false;
    }
    for (const TensorId t : unread_) {
        drop(t);
    }
    for (const TensorId t : early_) {
        begin(t, classes[at(fact(t).first_gap)]);
    }
    for (OpId op = 0; at(op) < graph_.ops().size(); ++op) {
        now_ = op;
        if (!run(op, -1)) {
            return false;
        }
        for (const TensorId t : graph_.op(op).reads) {
            touch(t, op);
        }
        for (const TensorId t : graph_.op(op).writes) {
            touch(t, op);
        }
        for (const TensorId t : passing_) {
            if (!foresees_ && !fact(t).stays && state(t).here && next_demand(t, op + 1) == none) {
                drop(t);
            }
        }
        passing_.clear();
    }
    return true;
}

bool GapBuilder::build(std::span<const MapClass> classes, Bytes capacity, const FetchRule& rule, StepList& list) {
    capacity_ = capacity;
    asked_.clear();
    foresees_ = true;
    if (!pass(classes)) {
        return false;
    }
    collect_demands();
    foresees_ = false;
    if (!pass(classes)) {
        return false;
    }
    places_.attribute(outline_);
    return places_.list(outline_, capacity, rule, {}, list);
}

} // namespace memsched
