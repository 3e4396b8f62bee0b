#include "memsched/planners/modnn/state.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace memsched {
namespace {

constexpr std::size_t out = 0; // the link of offloads

} // namespace

ModnnState::ModnnState(const ModnnFacts& facts, const Device& device, Bytes capacity)
    : facts_(facts), device_(device), in_(device.duplex ? 1 : out),
      layout_{SegmentList(capacity), Flags(facts.uses.size(), 0), Flags(facts.uses.size(), 0)},
      tensors_(facts.uses.size()) {
    Bytes low = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const Tensor& one = facts.graph.tensors()[t];
        tensors_[t].exists = one.source();
        layout_.here[t] = one.source();
        if (one.source() && one.bytes > 0) {
            reserve(static_cast<TensorId>(t), low, one.bytes);
            low += one.bytes;
        }
    }
}

Seconds ModnnState::offload_time(TensorId t) const {
    return transfer_time(facts_.bytes(t), device_.d2h, device_.latency);
}

Seconds ModnnState::fetch_time(TensorId t) const {
    return transfer_time(facts_.bytes(t), device_.h2d, device_.latency);
}

Seconds ModnnState::makespan() const { return std::max({clock_, busy_[0], busy_[1]}); }

Tensors ModnnState::missing_inputs(OpId op) const {
    Tensors found;
    for (const TensorId t : facts_.graph.op(op).reads) {
        if (tensor(t).exists && !layout_.here[at(t)] && facts_.bytes(t) > 0) {
            found.push_back(t);
        }
    }
    return found;
}

Seconds ModnnState::release_of(Bytes low, Bytes bytes) const {
    Seconds time = 0;
    for (const Released& old : released_) {
        if (old.low < low + bytes && low < old.high) {
            time = std::max(time, old.time);
        }
    }
    return time;
}

void ModnnState::sort_by_age(Tensors& tensors) const {
    std::ranges::sort(tensors, {}, [&](TensorId t) { return std::tuple(tensor(t).ready, tensor(t).low); });
}

std::optional<ModnnState::Scheme> ModnnState::scheme(TensorId owner, Bytes bytes, const Flags& protects, Seconds now,
                                                     OpId behind, const std::function<void()>& between) const {
    const bool top = facts_.goes_to_top(owner);
    std::optional<Scheme> best;
    std::tuple<Seconds, Bytes, OpId, Bytes> least;
    layout_.each_window(bytes, protects, [&](Window&& window) {
        between();
        Scheme one{0, top ? window.high - bytes : window.low, std::move(window.tensors)};
        sort_by_age(one.victims);
        Bytes moved = window.held; // to evict, and to offload
        OpId soonest = std::numeric_limits<OpId>::max();
        Seconds free = release_of(one.low, bytes), link = busy_[out];
        for (const TensorId t : one.victims) {
            soonest = std::min(soonest, facts_.next_use(t, behind));
            free = std::max(free, tensor(t).touch);
            if (tensor(t).host < 0) {
                moved += facts_.bytes(t);
                link = std::max(link, tensor(t).ready) + offload_time(t);
                free = std::max(free, link);
            }
        }
        one.delay = std::max(0.0, free - now);
        const std::tuple key(one.delay, moved, -soonest, one.low);
        if (!best || key < least) {
            least = key;
            best = std::move(one);
        }
    });
    return best;
}

void ModnnState::reserve(TensorId owner, Bytes low, Bytes bytes) {
    layout_.memory.place(owner, low, bytes);
    if (owner >= 0) {
        tensor(owner).low = low;
    }
}

void ModnnState::withdraw(TensorId owner) { layout_.memory.remove(owner); }

std::ptrdiff_t ModnnState::append(const Step& step, std::vector<Bytes> addresses) {
    order_.push_back(nodes_.size());
    nodes_.push_back({step, std::move(addresses)});
    return static_cast<std::ptrdiff_t>(order_.back());
}

// Searched from the end, since it is usually near; -1 for none.
std::ptrdiff_t ModnnState::position(std::ptrdiff_t node) const {
    if (node < 0) {
        return -1;
    }
    return order_.rend() - std::find(order_.rbegin(), order_.rend(), static_cast<std::size_t>(node)) - 1;
}

// An offload may be retroactive: right after the last transfer of its link, or after the step that made the tensor,
// whichever is later in the list (Fig. 3).
void ModnnState::offload(TensorId t) {
    TensorState& state = tensor(t);
    const std::ptrdiff_t behind = std::max(position(last_[out]), position(state.maker));
    last_[out] = append({Verb::offload, false, t, 0, -1});
    std::rotate(order_.begin() + behind + 1, order_.end() - 1, order_.end());
    busy_[out] = std::max(busy_[out], state.ready) + offload_time(t);
    state.host = busy_[out];
    state.touch = std::max(state.touch, state.host);
}

void ModnnState::drop(TensorId t) {
    append({Verb::free, false, t, 0, -1});
    layout_.here[at(t)] = 0;
    if (facts_.bytes(t) > 0) {
        const TensorState& state = tensor(t);
        released_.push_back({state.low, state.low + facts_.bytes(t), std::max(issued_, state.touch)});
        withdraw(t);
    }
}

void ModnnState::evict(const Tensors& victims) {
    for (const TensorId t : victims) {
        if (tensor(t).host < 0) {
            offload(t);
        }
        drop(t);
    }
}

void ModnnState::evict_all() {
    Tensors all;
    for (const Segment& segment : layout_.memory.segments()) {
        if (segment.owner >= 0) {
            all.push_back(segment.owner);
        }
    }
    sort_by_age(all);
    evict(all);
}

void ModnnState::prefetch(TensorId t, Bytes low) {
    TensorState& state = tensor(t);
    reserve(t, low, facts_.bytes(t));
    state.maker = last_[in_] = append({Verb::prefetch, false, t, 0, -1}, {low});
    const Seconds start = std::max({busy_[in_], state.host, release_of(low, facts_.bytes(t)), issued_});
    state.ready = state.touch = busy_[in_] = start + fetch_time(t);
    layout_.arrive(t);
}

void ModnnState::run(OpId id, std::int32_t choice, Bytes scratch, Seconds start) {
    const Op& op = facts_.graph.op(id);
    std::vector<Bytes> addresses;
    for (const TensorId t : op.writes) {
        addresses.push_back(facts_.bytes(t) > 0 ? tensor(t).low : StepList::no_address);
    }
    addresses.push_back(scratch);
    const std::ptrdiff_t node = append({Verb::run, false, id, choice, -1}, std::move(addresses));
    issued_ = start;
    clock_ = start + op.choices[at(choice)].time;
    std::erase_if(released_, [&](const Released& old) { return old.time <= issued_; });
    for (const TensorId t : facts_.graph.op(id).reads) {
        tensor(t).touch = std::max(tensor(t).touch, clock_);
        layout_.used[at(t)] = 1;
    }
    for (const TensorId t : op.writes) {
        TensorState& state = tensor(t);
        state.ready = state.touch = clock_;
        state.maker = node;
        state.exists = true;
        layout_.arrive(t);
    }
    if (scratch != StepList::no_address) {
        withdraw(Segment::workspace);
        released_.push_back({scratch, scratch + op.choices[at(choice)].workspace, clock_});
    }
    for (const TensorId t : facts_.over[at(id)]) {
        if (layout_.here[at(t)]) {
            drop(t);
        }
    }
}

StepList ModnnState::steps() const {
    StepList list;
    for (const std::size_t node : order_) {
        list.steps.push_back(nodes_[node].step);
        list.at.push_back(nodes_[node].at);
    }
    return list;
}

} // namespace memsched
