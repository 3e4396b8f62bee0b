#include "memsched/planners/modnn.h"

#include "memsched/errors.h"
#include "memsched/planners/segment_list.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace memsched {
namespace {

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();
using Tensors = std::vector<TensorId>;
using Flags = std::vector<std::uint8_t>;

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

// The first choice of the least workspace.
std::int32_t baseline(const Op& op) {
    const auto least = std::min_element(op.choices.begin(), op.choices.end(),
                                        [](const Choice& a, const Choice& b) { return a.workspace < b.workspace; });
    return static_cast<std::int32_t>(least - op.choices.begin());
}

// The first of the least time.
const Choice& fastest(const Op& op) {
    return *std::min_element(op.choices.begin(), op.choices.end(),
                             [](const Choice& a, const Choice& b) { return a.time < b.time; });
}

Tensors distinct(const Tensors& tensors) {
    Tensors found;
    for (const TensorId t : tensors) {
        if (std::find(found.begin(), found.end(), t) == found.end()) {
            found.push_back(t);
        }
    }
    return found;
}

Bytes need(const Graph& graph, const Op& op, Bytes workspace) {
    Bytes sum = workspace;
    for (const Tensors& side : {distinct(op.reads), op.writes}) {
        for (const TensorId t : side) {
            sum += graph.tensor(t).bytes;
        }
    }
    return sum;
}

bool source(const Tensor& tensor) { return tensor.role == Role::input || tensor.role == Role::weight; }

// Feature maps go to the bottom, gradients and workspaces to the top.
bool goes_to_top(const Graph& graph, TensorId owner) {
    return owner == Segment::workspace || graph.tensor(owner).role == Role::gradient;
}

// What a tensor's place in memory depends on: where it is, and whether it has served.
struct Layout {
    SegmentList memory;
    Flags here; // by tensor, as the next
    Flags used; // since it was made or last fetched
};

// Facts of the graph that the walk asks for again and again.
struct Facts {
    explicit Facts(const Graph& g) : graph(g), uses(g.tensors().size()) {
        for (std::size_t i = 0; i < g.ops().size(); ++i) {
            const Op& op = g.ops()[i];
            base.push_back(baseline(op));
            quickest.push_back(fastest(op).time);
            reads.push_back(distinct(op.reads));
            for (const TensorId t : reads.back()) {
                uses[at(t)].push_back(static_cast<OpId>(i));
            }
        }
    }

    Bytes bytes(TensorId t) const { return graph.tensor(t).bytes; }
    Bytes base_workspace(OpId i) const { return graph.op(i).choices[at(base[at(i)])].workspace; }

    // The first reader behind an op; as many as there are ops where there is none.
    OpId next_use(TensorId t, OpId behind) const {
        const auto found = std::upper_bound(uses[at(t)].begin(), uses[at(t)].end(), behind);
        return found == uses[at(t)].end() ? static_cast<OpId>(graph.ops().size()) : *found;
    }

    // It may go for good after an op: it has readers, or is an input, and none is left.
    bool over(TensorId t, OpId behind) const {
        const Role role = graph.tensor(t).role;
        return role != Role::weight && (role == Role::input || !uses[at(t)].empty()) &&
               (uses[at(t)].empty() || uses[at(t)].back() <= behind);
    }

    // Largest first, in the given order where equal; without those of no bytes.
    Tensors by_size(Tensors tensors) const {
        std::erase_if(tensors, [&](TensorId t) { return bytes(t) == 0; });
        std::stable_sort(tensors.begin(), tensors.end(), [&](TensorId a, TensorId b) { return bytes(a) > bytes(b); });
        return tensors;
    }

    const Graph& graph;
    std::vector<std::int32_t> base;      // by op
    std::vector<Seconds> quickest;       // by op
    std::vector<Tensors> reads;          // by op, each once
    std::vector<std::vector<OpId>> uses; // by tensor: its readers
};

// Line 16: whether ops i .. s find room once `layout` holds what is to be prefetched. They take their least workspaces,
// first fits, and the windows of fewest bytes where nothing fits.
class Foresight {
  public:
    explicit Foresight(const Facts& facts) : facts_(facts) {}

    bool fits(OpId i, OpId s, Layout layout) const {
        finish(i, layout);
        for (OpId u = i + 1; u <= s; ++u) {
            Flags protects(layout.here.size(), 0);
            Tensors absent;
            for (const TensorId t : facts_.reads[at(u)]) {
                protects[at(t)] = 1;
                if (!layout.here[at(t)]) {
                    absent.push_back(t);
                }
            }
            for (const TensorId t : facts_.graph.op(u).writes) {
                protects[at(t)] = 1;
            }
            for (const TensorId t : facts_.by_size(absent)) {
                if (!take(t, facts_.bytes(t), protects, layout)) {
                    return false;
                }
                layout.here[at(t)] = 1;
            }
            for (const TensorId t : facts_.by_size(facts_.graph.op(u).writes)) {
                if (!take(t, facts_.bytes(t), protects, layout)) {
                    return false;
                }
            }
            const Bytes scratch = facts_.base_workspace(u);
            if (scratch > 0 && !take(Segment::workspace, scratch, protects, layout)) {
                return false;
            }
            finish(u, layout);
        }
        return true;
    }

  private:
    bool take(TensorId owner, Bytes bytes, const Flags& protects, Layout& layout) const {
        const bool top = goes_to_top(facts_.graph, owner);
        auto low = layout.memory.first_fit(bytes, top);
        if (!low) {
            const auto may_go = [&](TensorId t) { return t >= 0 && !protects[at(t)] && layout.used[at(t)]; };
            const std::vector<Segment> segments = layout.memory.segments();
            Bytes fewest = std::numeric_limits<Bytes>::max();
            std::optional<Window> best;
            for (const Window& window : windows(layout.memory, bytes, may_go)) {
                Bytes evicted = 0;
                for (std::size_t k = window.first; k <= window.last; ++k) {
                    evicted += segments[k].owner == Segment::free ? 0 : segments[k].bytes();
                }
                if (evicted < fewest) {
                    fewest = evicted;
                    best = window;
                }
            }
            if (!best) {
                return false;
            }
            for (std::size_t k = best->first; k <= best->last; ++k) {
                if (const TensorId t = segments[k].owner; t != Segment::free) {
                    layout.memory.remove(t);
                    layout.here[at(t)] = 0;
                }
            }
            low = top ? segments[best->last].high - bytes : segments[best->first].low;
        }
        layout.memory.place(owner, *low, bytes);
        if (owner >= 0) {
            layout.used[at(owner)] = 0;
        }
        return true;
    }

    void finish(OpId op, Layout& layout) const {
        layout.memory.remove(Segment::workspace);
        for (const TensorId t : facts_.reads[at(op)]) {
            layout.used[at(t)] = 1;
        }
        for (const TensorId t : facts_.graph.op(op).writes) {
            layout.used[at(t)] = 0;
            layout.here[at(t)] = 1;
        }
        for (std::size_t t = 0; t < layout.here.size(); ++t) {
            if (layout.here[t] && facts_.over(static_cast<TensorId>(t), op)) {
                layout.here[t] = 0;
                layout.memory.remove(static_cast<TensorId>(t));
            }
        }
    }

    const Facts& facts_;
};

class Walk {
  public:
    Walk(const Graph& graph, const Device& device, Bytes capacity, const ModnnOptions& options)
        : facts_(graph), foresight_(facts_), device_(device), options_(options),
          layout_{SegmentList(capacity), Flags(graph.tensors().size(), 0), Flags(graph.tensors().size(), 0)},
          tensors_(graph.tensors().size()), exists_(graph.tensors().size(), 0) {
        Bytes low = 0;
        for (std::size_t t = 0; t < tensors_.size(); ++t) {
            const Tensor& tensor = graph.tensors()[t];
            if (source(tensor)) {
                layout_.here[t] = exists_[t] = 1;
                if (tensor.bytes > 0) {
                    layout_.memory.place(static_cast<TensorId>(t), low, tensor.bytes);
                    tensors_[t].low = low;
                    low += tensor.bytes;
                }
            }
        }
    }

    ModnnSolution plan(const Progress& progress) {
        const auto n = static_cast<OpId>(facts_.graph.ops().size());
        for (OpId i = 0; i < n; ++i) {
            if (progress.tick(static_cast<double>(i) / n)) {
                break_off(); // there is no half of a plan
            }
            run(i);
        }
        ModnnSolution found;
        found.makespan = std::max({clock_, busy_[0], busy_[1]});
        for (const std::size_t node : order_) {
            found.steps.steps.push_back(nodes_[node].step);
            found.steps.at.push_back(nodes_[node].at);
        }
        return found;
    }

  private:
    struct Node { // a step, with its addresses
        Step step;
        std::vector<Bytes> at;
    };
    struct State { // of a tensor
        Bytes low = 0;
        Seconds ready = 0;         // the device copy is complete
        Seconds touch = 0;         // the last step that touches it ends
        Seconds host = -1;         // the host copy is complete; < 0: there is none
        std::ptrdiff_t maker = -1; // the step that made the device copy
    };
    struct Released {
        Bytes low, high;
        Seconds time;
    };
    struct Scheme {
        Seconds delay = 0;
        Bytes low = 0;
        Tensors victims; // in the order in which they leave
    };
    struct Algorithm {
        std::int32_t choice = 0;
        Bytes low = StepList::no_address; // of its workspace
        Tensors victims;
    };
    enum Direction : std::size_t { out, in };

    [[noreturn]] static void break_off() { throw Interrupted(); }

    std::size_t stream(Direction direction) const { return device_.duplex ? direction : 0; }
    Seconds& busy(Direction direction) { return busy_[stream(direction)]; }
    Seconds travel(TensorId t, Direction direction) const {
        return transfer_time(facts_.bytes(t), direction == out ? device_.d2h : device_.h2d, device_.latency);
    }
    bool missing(TensorId t) const { return exists_[at(t)] && !layout_.here[at(t)] && facts_.bytes(t) > 0; }

    Tensors missing_inputs(OpId op) const {
        Tensors found;
        for (const TensorId t : facts_.reads[at(op)]) {
            if (missing(t)) {
                found.push_back(t);
            }
        }
        return found;
    }

    // The moment from which on a range is really free.
    Seconds release_of(Bytes low, Bytes bytes) const {
        Seconds time = 0;
        for (const Released& old : released_) {
            if (old.low < low + bytes && low < old.high) {
                time = std::max(time, old.time);
            }
        }
        return time;
    }

    Flags protect(OpId first, OpId last) const { // the reads of these ops, and the writes of the first
        Flags flags(tensors_.size(), 0);
        for (OpId op = first; op <= last; ++op) {
            for (const TensorId t : facts_.reads[at(op)]) {
                flags[at(t)] = 1;
            }
        }
        for (const TensorId t : facts_.graph.op(first).writes) {
            flags[at(t)] = 1;
        }
        return flags;
    }

    // The offloading scheme of least delay, counted from `now`, that makes room; `behind` is the op behind which
    // victims are needed again.
    std::optional<Scheme> scheme(TensorId owner, Bytes bytes, const Flags& protects, Seconds now, OpId behind) const {
        const bool top = goes_to_top(facts_.graph, owner);
        const std::vector<Segment>& segments = layout_.memory.segments();
        const auto may_go = [&](TensorId t) { return t >= 0 && !protects[at(t)] && layout_.used[at(t)]; };
        std::optional<Scheme> best;
        std::tuple<Seconds, Bytes, OpId, Bytes> least;
        for (const Window& window : windows(layout_.memory, bytes, may_go)) {
            Scheme one;
            Bytes evicted = 0;
            OpId soonest = std::numeric_limits<OpId>::max();
            for (std::size_t k = window.first; k <= window.last; ++k) {
                if (const TensorId t = segments[k].owner; t != Segment::free) {
                    one.victims.push_back(t);
                    evicted += segments[k].bytes() * (tensors_[at(t)].host < 0 ? 2 : 1);
                    soonest = std::min(soonest, facts_.next_use(t, behind));
                }
            }
            one.low = top ? segments[window.last].high - bytes : segments[window.first].low;
            sort_by_age(one.victims);
            Seconds free = release_of(one.low, bytes), link = busy_[stream(out)];
            for (const TensorId t : one.victims) {
                const State& state = tensors_[at(t)];
                free = std::max(free, state.touch);
                if (state.host < 0) {
                    link = std::max(link, state.ready) + travel(t, out);
                    free = std::max(free, link);
                }
            }
            one.delay = std::max(0.0, free - now);
            const std::tuple key(one.delay, evicted, -soonest, one.low);
            if (!best || key < least) {
                least = key;
                best = std::move(one);
            }
        }
        return best;
    }

    void sort_by_age(Tensors& tensors) const {
        std::sort(tensors.begin(), tensors.end(), [&](TensorId a, TensorId b) {
            return std::tuple(tensors_[at(a)].ready, tensors_[at(a)].low) <
                   std::tuple(tensors_[at(b)].ready, tensors_[at(b)].low);
        });
    }

    // The list of steps.

    std::ptrdiff_t append(Step step, std::vector<Bytes> addresses = {}) {
        nodes_.push_back({step, std::move(addresses)});
        order_.push_back(nodes_.size() - 1);
        return static_cast<std::ptrdiff_t>(nodes_.size() - 1);
    }

    std::ptrdiff_t position(std::ptrdiff_t node) const { // from the end, where it mostly is; -1: nowhere
        if (node < 0) {
            return -1;
        }
        const auto found = std::find(order_.rbegin(), order_.rend(), static_cast<std::size_t>(node));
        return order_.rend() - found - 1;
    }

    // An offload may be written into the past: right behind the last transfer of its stream, or behind the step that
    // made the tensor (Fig. 3).
    void offload(TensorId t) {
        State& state = tensors_[at(t)];
        std::ptrdiff_t& last = last_[stream(out)];
        const std::ptrdiff_t behind = std::max(position(last), position(state.maker));
        nodes_.push_back({{Verb::offload, false, t, 0, -1}, {}});
        order_.insert(order_.begin() + behind + 1, nodes_.size() - 1);
        last = static_cast<std::ptrdiff_t>(nodes_.size() - 1);
        busy(out) = std::max(busy(out), state.ready) + travel(t, out);
        state.host = busy(out);
        state.touch = std::max(state.touch, state.host);
    }

    void drop(TensorId t) {
        append({Verb::free, false, t, 0, -1});
        layout_.here[at(t)] = 0;
        if (facts_.bytes(t) > 0) {
            const State& state = tensors_[at(t)];
            released_.push_back({state.low, state.low + facts_.bytes(t), std::max(issued_, state.touch)});
            layout_.memory.remove(t);
        }
    }

    void evict(const Tensors& victims) {
        for (const TensorId t : victims) {
            if (tensors_[at(t)].host < 0) {
                offload(t);
            }
            drop(t);
        }
    }

    void prefetch(TensorId t, Bytes low) {
        State& state = tensors_[at(t)];
        layout_.memory.place(t, low, facts_.bytes(t));
        state.low = low;
        state.maker = last_[stream(in)] = append({Verb::prefetch, false, t, 0, -1}, {low});
        const Seconds start = std::max({busy(in), state.host, release_of(low, facts_.bytes(t)), issued_});
        state.ready = state.touch = busy(in) = start + travel(t, in);
        layout_.here[at(t)] = 1;
        layout_.used[at(t)] = 0;
    }

    // Lines 3 to 8: room for the op's inputs, outputs and least workspace.
    void make_room(OpId i) {
        const Flags protects = protect(i, i);
        bool whole = true;
        const auto find = [&](TensorId owner, Bytes bytes) -> std::optional<Bytes> {
            if (const auto low = layout_.memory.first_fit(bytes, goes_to_top(facts_.graph, owner))) {
                return low;
            }
            const auto found = scheme(owner, bytes, protects, clock_, i);
            if (!found) {
                whole = false;
                return std::nullopt;
            }
            evict(found->victims);
            return found->low;
        };
        for (const TensorId t : facts_.by_size(missing_inputs(i))) {
            if (const auto low = find(t, facts_.bytes(t))) {
                prefetch(t, *low);
            } else {
                break;
            }
        }
        if (whole) {
            reserve(i, find);
        }
        if (!whole) {
            defragment(i);
        }
    }

    template <class Find> void reserve(OpId i, const Find& find) {
        for (const TensorId t : facts_.by_size(facts_.graph.op(i).writes)) {
            const auto low = find(t, facts_.bytes(t));
            if (!low) {
                return;
            }
            layout_.memory.place(t, *low, facts_.bytes(t));
            tensors_[at(t)].low = *low;
        }
        if (const Bytes scratch = facts_.base_workspace(i); scratch > 0) {
            if (const auto low = find(Segment::workspace, scratch)) {
                layout_.memory.place(Segment::workspace, *low, scratch);
                scratch_low_ = *low;
            }
        }
    }

    // Everything leaves, and comes back without holes as far as the op needs it.
    void defragment(OpId i) {
        layout_.memory.remove(Segment::workspace);
        for (const TensorId t : facts_.graph.op(i).writes) {
            layout_.memory.remove(t);
        }
        Tensors all;
        for (const Segment& segment : layout_.memory.segments()) {
            if (segment.owner >= 0) {
                all.push_back(segment.owner);
            }
        }
        sort_by_age(all);
        evict(all);
        for (const TensorId t : facts_.by_size(missing_inputs(i))) {
            prefetch(t, *layout_.memory.first_fit(facts_.bytes(t), false));
        }
        reserve(i, [&](TensorId owner, Bytes bytes) {
            return layout_.memory.first_fit(bytes, goes_to_top(facts_.graph, owner));
        });
    }

    // The earliest start of op s when op i runs from `start` for `time` and the ops between take their fastest.
    Seconds earliest_start(OpId i, OpId s, Seconds start, Seconds time) const {
        return std::accumulate(facts_.quickest.begin() + i + 1, facts_.quickest.begin() + s, start + time);
    }

    Seconds travel_in(const Tensors& tensors) const {
        Seconds sum = 0;
        for (const TensorId t : tensors) {
            sum += travel(t, in);
        }
        return sum;
    }

    // Eq. (4): fetched later, they would be late.
    bool must_fetch(OpId i, OpId s, const Tensors& miss, Seconds start, Seconds time) const {
        return std::max(busy_[stream(in)], start + time) + travel_in(miss) > earliest_start(i, s, start, time);
    }

    // Lines 9 to 14, eq. (5): the algorithm that gains the most over the baseline, and what its workspace costs.
    Algorithm choose(OpId i, Seconds start) {
        const Op& op = facts_.graph.op(i);
        const std::int32_t base = facts_.base[at(i)];
        layout_.memory.remove(Segment::workspace);
        const Flags protects = protect(i, i);
        OpId s = i + 1;
        const auto n = static_cast<OpId>(facts_.graph.ops().size());
        Tensors miss;
        for (; s < n && (miss = missing_inputs(s)).empty(); ++s) {
        }
        Algorithm best;
        Seconds gain = -never;
        for (std::size_t k = 0; k < op.choices.size(); ++k) {
            const Choice& choice = op.choices[k];
            const bool is_base = static_cast<std::int32_t>(k) == base;
            if (!is_base && choice.time >= op.choices[at(base)].time) {
                continue;
            }
            Algorithm one{static_cast<std::int32_t>(k), StepList::no_address, {}};
            Seconds wait = 0;
            if (choice.workspace > 0) {
                const auto fit =
                    is_base ? std::optional(scratch_low_) : layout_.memory.first_fit(choice.workspace, true);
                if (fit) {
                    one.low = *fit;
                    wait = std::max(0.0, release_of(*fit, choice.workspace) - start);
                } else if (auto found = scheme(Segment::workspace, choice.workspace, protects, start, i)) {
                    one.low = found->low;
                    one.victims = std::move(found->victims);
                    wait = found->delay;
                } else {
                    continue;
                }
            }
            const Seconds late = s < n ? fetches_delayed(i, s, miss, start, wait, choice, one) : 0;
            const Seconds own = op.choices[at(base)].time - choice.time - wait - late;
            if (own > gain) {
                gain = own;
                best = std::move(one);
            }
        }
        return best;
    }

    // By how much the workspace makes the fetches for op s end later.
    Seconds fetches_delayed(OpId i, OpId s, const Tensors& miss, Seconds start, Seconds wait, const Choice& choice,
                            const Algorithm& algorithm) const {
        if (choice.workspace == 0 || !must_fetch(i, s, miss, start, choice.time)) {
            return 0;
        }
        SegmentList with = layout_.memory;
        for (const TensorId t : algorithm.victims) {
            with.remove(t);
        }
        with.place(Segment::workspace, algorithm.low, choice.workspace);
        Seconds late = 0;
        for (const TensorId t : miss) {
            const bool top = goes_to_top(facts_.graph, t);
            if (layout_.memory.first_fit(facts_.bytes(t), top) && !with.first_fit(facts_.bytes(t), top)) {
                late += travel(t, in);
            }
        }
        const Seconds link = busy_[stream(in)];
        return std::max(
            0.0, std::max(link, start + wait + choice.time) + late -
                     std::max(earliest_start(i, s, start, choice.time), std::max(link, start) + travel_in(miss)));
    }

    // Lines 15 to 27: prefetches that would be late if they waited, as far as there is room for them.
    void look_ahead(OpId i, Seconds start, Seconds time) {
        const auto n = static_cast<OpId>(facts_.graph.ops().size());
        for (OpId s = i + 1; s < n; ++s) {
            const Tensors miss = missing_inputs(s);
            if (miss.empty()) {
                continue;
            }
            if (!must_fetch(i, s, miss, start, time)) {
                return;
            }
            const Flags protects = protect(i, s);
            for (const TensorId t : miss) {
                Scheme place;
                if (const auto low = layout_.memory.first_fit(facts_.bytes(t), goes_to_top(facts_.graph, t))) {
                    place.low = *low;
                } else if (auto found = scheme(t, facts_.bytes(t), protects, start, s)) {
                    place = std::move(*found);
                } else {
                    return;
                }
                if (options_.foresee && !foresees(i, s, t, place)) {
                    return;
                }
                evict(place.victims);
                prefetch(t, place.low);
            }
        }
    }

    bool foresees(OpId i, OpId s, TensorId t, const Scheme& place) const {
        Layout layout = layout_;
        for (const TensorId victim : place.victims) {
            layout.memory.remove(victim);
            layout.here[at(victim)] = 0;
        }
        layout.memory.place(t, place.low, facts_.bytes(t));
        layout.here[at(t)] = 1;
        layout.used[at(t)] = 0;
        return foresight_.fits(i, s, std::move(layout));
    }

    void run(OpId i) {
        const Op& op = facts_.graph.op(i);
        make_room(i);
        Seconds start = clock_;
        for (const TensorId t : facts_.reads[at(i)]) {
            start = std::max(start, tensors_[at(t)].ready);
        }
        for (const TensorId t : op.writes) {
            start = std::max(start, release_of(tensors_[at(t)].low, facts_.bytes(t)));
        }
        const Algorithm algorithm = choose(i, start);
        const Choice& choice = op.choices[at(algorithm.choice)];
        evict(algorithm.victims);
        if (choice.workspace > 0) {
            layout_.memory.place(Segment::workspace, algorithm.low, choice.workspace);
            start = std::max(start, release_of(algorithm.low, choice.workspace));
        }
        look_ahead(i, start, choice.time);
        emit(i, algorithm, start, choice);
    }

    void emit(OpId i, const Algorithm& algorithm, Seconds start, const Choice& choice) {
        const Op& op = facts_.graph.op(i);
        std::vector<Bytes> addresses;
        for (const TensorId t : op.writes) {
            addresses.push_back(facts_.bytes(t) > 0 ? tensors_[at(t)].low : StepList::no_address);
        }
        addresses.push_back(algorithm.low);
        const std::ptrdiff_t node = append({Verb::run, false, i, algorithm.choice, -1}, std::move(addresses));
        issued_ = start;
        clock_ = start + choice.time;
        std::erase_if(released_, [&](const Released& old) { return old.time <= issued_; });
        for (const TensorId t : facts_.reads[at(i)]) {
            tensors_[at(t)].touch = std::max(tensors_[at(t)].touch, clock_);
            layout_.used[at(t)] = 1;
        }
        for (const TensorId t : op.writes) {
            State& state = tensors_[at(t)];
            state.ready = state.touch = clock_;
            state.maker = node;
            exists_[at(t)] = layout_.here[at(t)] = 1;
            layout_.used[at(t)] = 0;
        }
        if (choice.workspace > 0) {
            layout_.memory.remove(Segment::workspace);
            released_.push_back({algorithm.low, algorithm.low + choice.workspace, clock_});
        }
        for (std::size_t t = 0; t < tensors_.size(); ++t) {
            if (layout_.here[t] && facts_.over(static_cast<TensorId>(t), i)) {
                drop(static_cast<TensorId>(t));
            }
        }
    }

    Facts facts_;
    Foresight foresight_;
    const Device& device_;
    ModnnOptions options_;
    Layout layout_;
    std::vector<State> tensors_;
    Flags exists_;
    std::vector<Released> released_;
    std::vector<Node> nodes_;
    std::vector<std::size_t> order_;    // of the nodes in the list
    std::ptrdiff_t last_[2] = {-1, -1}; // the last transfer of each stream
    Seconds busy_[2] = {0, 0};          // and its end
    Seconds clock_ = 0;                 // the end of the last run
    Seconds issued_ = 0;                // and its start
    Bytes scratch_low_ = 0;             // where the least workspace of the present op was reserved
};

} // namespace

Bytes modnn_min_memory(const Graph& graph) {
    Bytes sources = 0, most = 0;
    for (const Tensor& tensor : graph.tensors()) {
        sources += source(tensor) ? tensor.bytes : 0;
    }
    for (const Op& op : graph.ops()) {
        most = std::max(most, need(graph, op, op.choices[at(baseline(op))].workspace));
    }
    return graph.resident() + std::max(most, sources);
}

Bytes need_of_fastest(const Graph& graph) {
    Bytes most = 0;
    for (const Op& op : graph.ops()) {
        most = std::max(most, need(graph, op, fastest(op).workspace));
    }
    return most;
}

ModnnSolution modnn(const Graph& graph, const Device& device, Bytes budget, const ModnnOptions& options,
                    const Progress& progress) {
    const Bytes most = std::min(budget, device.memory), least = modnn_min_memory(graph);
    if (most < least) {
        throw InfeasibleError("some op of '" + graph.name() + "' does not fit in " + std::to_string(most) +
                                  " bytes; it needs M >= " + std::to_string(least),
                              least);
    }
    return Walk(graph, device, most - graph.resident(), options).plan(progress);
}

} // namespace memsched
