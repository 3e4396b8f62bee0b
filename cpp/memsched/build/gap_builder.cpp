#include "memsched/build/gap_builder.h"

#include "memsched/build/free_early.h"
#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <limits>

namespace memsched {
namespace {

constexpr std::size_t most_repeats = 8;       // runs per op, on average
constexpr std::int64_t patience = 20'000'000; // steps for a first plan, whatever the limit: about a tenth of a second

} // namespace

GapBuilder::GapBuilder(const Graph& graph, const Device& device, const Progress& progress)
    : graph_(graph), device_(device), pace_(progress, patience), link_(device.d2h > 0 && device.h2d > 0),
      turn_(Lifetimes(graph).turn), places_(graph, turn_), wanted_(graph), facts_(graph.tensors().size()), begin_{0} {
    const auto ops = static_cast<OpId>(graph.ops().size());
    std::vector<OpId> last(facts_.size(), -1);
    std::vector<std::vector<Gap>> gaps(facts_.size());
    for (OpId op = 0; op < ops; ++op) {
        begin_.push_back(begin_.back() + graph.op(op).choices[0].time);
        for (const TensorId t : graph.op(op).writes) {
            last[at(t)] = op;
        }
        for (const TensorId t : graph.op(op).reads) {
            const bool arrives = graph.tensor(t).persistent() && last[at(t)] < 0;
            facts_[at(t)].first = arrives ? op : facts_[at(t)].first;
            if (op > last[at(t)] + 1 && !arrives) {
                gaps[at(t)].push_back({t, last[at(t)], op});
            }
            last[at(t)] = op;
        }
        for (const TensorId t : graph.op(op).updates) {
            facts_[at(t)].updated = true;
        }
    }
    Bytes largest = 0;
    for (const Tensor& tensor : graph.tensors()) {
        largest = std::max(largest, tensor.bytes);
    }
    for (std::size_t t = 0; t < facts_.size(); ++t) {
        Fact& known = facts_[t];
        known.small = graph.tensors()[t].bytes < largest / 1000;
        const Tensor& tensor = graph.tensors()[t];
        const auto id = static_cast<TensorId>(t);
        known.bytes = tensor.bytes;
        known.result = graph.is_result(id) && !graph.persistent(); // else it ends before the border
        known.stays = known.result || (tensor.role == Role::weight && !graph.read(id));
        known.first_gap = static_cast<std::int32_t>(gaps_.size());
        known.persistent = tensor.persistent();
        if (known.persistent) {
            persistent_.push_back(id);
        }
        if ((last[t] + 1 < ops || known.persistent) && (graph.read(id) || known.result)) {
            gaps[t].push_back({id, last[t], ops});
        }
        if (tensor.bytes > 0) {
            gaps_.insert(gaps_.end(), gaps[t].begin(), gaps[t].end());
        }
        known.gaps = static_cast<std::int32_t>(gaps_.size()) - known.first_gap;
        if (tensor.role == Role::input && !graph.read(id) && tensor.bytes > 0) {
            unread_.push_back(id);
        }
        if (known.gaps > 0 && gaps_[at(known.first_gap)].from < 0 && !known.persistent) {
            early_.push_back(id);
        }
    }
}

void GapBuilder::reset() {
    live_ = 0;
    host_left_ = device_.host_memory.value_or(std::numeric_limits<Bytes>::max());
    clock_ = link_free_ = 0;
    now_ = graph_.persistent() ? 0 : -1; // memory may be short at the border
    depth_ = 0;
    repeated_ = 0;
    wanted_.reset(eviction_.forward_only ? turn_ : Wanted::never);
    state_.assign(facts_.size(), {});
    large_.clear();
    small_.clear();
    shortlist_.clear();
    still_good_ = 0;
    outline_.events.clear();
    for (std::size_t t = 0; t < state_.size(); ++t) {
        if (!graph_.tensors()[t].source()) {
            continue;
        }
        if (!facts_[t].persistent) {
            arrive(static_cast<TensorId>(t));
            continue;
        }
        state_[t].on_host = state_[t].kept = away_[t] || backed_[t];
        state_[t].changed_there = changed_there_[t];
        host_left_ -= state_[t].kept ? facts_[t].bytes : 0;
        if (!away_[t]) {
            arrive(static_cast<TensorId>(t));
        }
    }
}

void GapBuilder::arrive(TensorId tensor) {
    State& s = state(tensor);
    s.here = true;
    live_ += fact(tensor).bytes;
    if (fact(tensor).bytes > 0) {
        s.place = static_cast<std::int32_t>(present(tensor).size());
        present(tensor).push_back(tensor);
    }
    wanted_.set(tensor, true);
}

void GapBuilder::drop(TensorId tensor) {
    State& s = state(tensor);
    outline_.events.push_back({PlanEvent::free, tensor});
    s.here = false;
    live_ -= fact(tensor).bytes;
    if (s.place >= 0) {
        std::vector<TensorId>& present = this->present(tensor);
        state(present.back()).place = s.place;
        present[at(s.place)] = present.back();
        present.pop_back();
        s.place = -1;
    }
    wanted_.set(tensor, s.on_host);
}

bool GapBuilder::bring(TensorId tensor) {
    if (state(tensor).here) {
        return true;
    }
    if (!state(tensor).on_host) {
        return graph_.repeatable(tensor) && run(graph_.writer(tensor), tensor);
    }
    if (!make_room(fact(tensor).bytes)) {
        return false;
    }
    outline_.events.push_back({PlanEvent::fetch, tensor});
    if (!device_.duplex) {
        link_free_ =
            std::max(link_free_, clock_) + device_.latency + static_cast<double>(fact(tensor).bytes) / device_.h2d;
    }
    arrive(tensor);
    return true;
}

bool GapBuilder::run(OpId id, TensorId wanted) {
    repeated_ += wanted >= 0;
    if (repeated_ > most_repeats * graph_.ops().size() || depth_ >= deepest_run) {
        return false;
    }
    pace_.spend(Pace::named + wanted_.work());
    ++depth_;
    const bool done = run_op(id, wanted);
    --depth_;
    return done;
}

// A run leaves out its tape if nobody wants any of it before `until`, or if it is the first run and all of it is to be
// recomputed later.
bool GapBuilder::skips_tape(const Op& op, TensorId wanted, OpId until) {
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
        if (wanted >= 0 && !state(t).here && graph_.read(t) && wanted_.next(t) < until) {
            return false;
        }
    }
    return !unread || run_bytes(graph_, op, true) < run_bytes(graph_, op, false);
}

bool GapBuilder::run_op(OpId id, TensorId wanted) {
    if (hosted(id)) {
        return update_on_host(id);
    }
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
    auto next = recomputed.begin(); // which are in the order of the reads
    for (const TensorId t : op.reads) {
        if (next != recomputed.end() && *next == t) {
            ++next;
            continue;
        }
        if (!bring(t)) {
            return false;
        }
        ++state(t).locks;
    }
    const auto locked = [&](TensorId t) { return state(t).here && state(t).locks > 0; };
    bool skip = skips_tape(op, wanted, std::ranges::any_of(op.tape, locked) ? now_ + 1 : Wanted::never);
    const auto written = [&](TensorId t) { return !skip || !graph_.taped(t); };
    for (const TensorId t : op.writes) {
        if (state(t).here && written(t)) { // another output of an op that runs again
            if (state(t).locks > 0) {
                return false;
            }
            drop(t);
        }
    }
    if (!make_room(run_bytes(graph_, op, skip))) {
        if (skip || wanted < 0 || !skips_tape(op, wanted, now_ + 1) || !make_room(run_bytes(graph_, op, true))) {
            return false;
        }
        skip = true;
    }
    outline_.events.push_back({PlanEvent::run, id, skip});
    for (const TensorId t : op.writes) {
        if (written(t)) {
            arrive(t);
        } else {
            wanted_.set(t, state(t).here || state(t).on_host);
        }
    }
    clock_ += op.choices[0].time;
    for (const TensorId t : op.writes) {
        state(t).touched = clock_;
        shortlist(t);
    }
    for (const TensorId t : op.reads) {
        --state(t).locks;
        state(t).touched = clock_;
        state(t).used = true;
        shortlist(t);
    }
    for (const TensorId t : op.updates) {
        state(t).on_host = state(t).changed_there = false; // the copy is stale
    }
    return true;
}

void GapBuilder::touch(TensorId tensor, OpId op) {
    const Fact& known = fact(tensor);
    State& s = state(tensor);
    while (s.gap < known.gaps && gaps_[at(known.first_gap + s.gap)].from < op) {
        ++s.gap;
    }
    if (!s.here || s.gap == known.gaps || gaps_[at(known.first_gap + s.gap)].from != op) {
        return;
    }
    const Gap& gap = gaps_[at(known.first_gap + s.gap)];
    const bool stays = graph_.tensor(tensor).source() && !known.persistent; // it is at the border anyway
    const MapClass kind = hosted(gap.to) && !stays ? MapClass::swap : classes_[at(known.first_gap + s.gap)];
    const bool leaves = known.persistent && s.gap + 1 == known.gaps && away_[at(tensor)];
    if (leaves || (kind == MapClass::swap && !crosses_border(tensor) && may_travel(tensor))) {
        send(tensor);
    } else if (kind == MapClass::recompute &&
               (s.on_host || (!known.result && wanted_.again(tensor) < Wanted::impossible))) {
        drop(tensor);
    }
}

bool GapBuilder::pass() {
    reset();
    if (live_ > capacity_ && !(graph_.persistent() && make_room(0))) {
        return false;
    }
    for (const TensorId t : unread_) {
        drop(t);
    }
    for (const TensorId t : early_) {
        touch(t, -1);
    }
    for (OpId op = 0; at(op) < graph_.ops().size(); ++op) {
        now_ = op;
        if (!run(op, -1)) {
            return false;
        }
        wanted_.ran();
        for (const auto* side : {&graph_.op(op).reads, &graph_.op(op).writes}) {
            for (const TensorId t : *side) {
                touch(t, op);
            }
        }
    }
    if (graph_.persistent()) {
        close_repetition();
        return true;
    }
    for (std::size_t t = 0; t < state_.size(); ++t) {
        if (state_[t].here && !facts_[t].stays) {
            drop(static_cast<TensorId>(t));
        }
    }
    return true;
}

// What leaves could have left right after it was last used.
void GapBuilder::advance_events() {
    const auto verb = [](const PlanEvent& event) {
        return event.what == PlanEvent::run      ? Verb::run
               : event.what == PlanEvent::fetch  ? Verb::prefetch
               : event.what == PlanEvent::update ? Verb::update
                                                 : Verb::free; // an offload, too
    };
    events_.clear();
    for (const std::int32_t k : free_early(graph_, outline_.events, verb)) {
        events_.push_back(outline_.events[at(k)]);
    }
    outline_.events.swap(events_);
}

bool GapBuilder::build(std::span<const MapClass> classes, std::span<const float> weights, const Eviction& eviction,
                       std::span<const std::uint8_t> hosted, Bytes capacity, StepList& list) {
    classes_ = classes;
    weights_ = weights;
    eviction_ = eviction;
    hosted_ = hosted;
    capacity_ = capacity;
    if (graph_.persistent()) {
        return build_repeated(list);
    }
    if (!pass()) {
        return false;
    }
    advance_events();
    places_.attribute(outline_);
    return places_.list(outline_, capacity, {}, {}, list);
}

} // namespace memsched
