#include "memsched/planners/selective/run_list.h"

#include <algorithm>
#include <utility>

namespace memsched {
namespace {

constexpr std::int64_t spacing = 1 << 20; // of keys
constexpr std::size_t few_writes = 8;     // of an op
constexpr Bytes large_share = 1000;       // tensors of more than this part of the capacity are large

// By tensor: where it is at the border. What is fetched for the next repetition is on the host there, until then.
std::vector<Copies> before_fetches(const Graph& graph, const StepList& plan) {
    std::vector<Copies> border(graph.tensors().size(), Copies::device);
    for (const auto& [tensor, copies] : plan.border) {
        border[at(tensor)] = copies;
    }
    std::vector<std::uint8_t> seen(border.size(), 0);
    for (std::size_t k = plan.steps.size(); k-- > 0 && graph.persistent();) { // the last touch of each tensor
        const Step& step = plan.steps[k];
        const auto see = [&](TensorId t) {
            if (!std::exchange(seen[at(t)], 1) && step.verb == Verb::prefetch && border[at(t)] == Copies::both) {
                border[at(t)] = Copies::host;
            }
        };
        if (step.verb == Verb::run) {
            std::ranges::for_each(graph.op(step.id).reads, see);
        } else {
            see(step.id);
        }
    }
    return border;
}

} // namespace

RunList::RunList(const Graph& graph, const StepList& plan, Bytes capacity, bool linked)
    : graph_(&graph), capacity_(capacity), linked_(linked), items_(2), touches_(graph.tensors().size()),
      runs_(graph.ops().size(), 0), border_(before_fetches(graph, plan)) {
    for (const Op& op : graph.ops()) {
        std::erase_if(without_tape_.emplace_back(op.writes), [&](TensorId t) { return graph.taped(t); });
    }
    items_[begin].event.what = items_[end].event.what = PlanEvent::free; // which touches nothing
    items_[end].key = std::int64_t{1} << 62;
    std::vector<std::uint8_t> here(touches_.size(), 0), fetched(touches_.size(), 0), sent(touches_.size(), 0);
    const auto append = [&](const PlanEvent& event) {
        const ItemId id = link(items_[end].previous, event);
        for (const auto& some : {reads(id), writes(id)}) {
            for (const TensorId t : some) {
                touches_[at(t)].push_back(id);
                here[at(t)] = 1;
            }
        }
    };
    for (TensorId t = 0; at(t) < touches_.size(); ++t) {
        if (graph.tensor(t).source() && border_[at(t)] != Copies::host) {
            sources_.push_back(t);
            touches_[at(t)].push_back(begin);
            here[at(t)] = 1;
        }
        if ((linked || graph.repeatable(t)) && large(t)) {
            large_.push_back(t);
        }
    }
    for (const auto& [t, copies] : plan.border) {
        fetched[at(t)] = copies == Copies::both && border_[at(t)] == Copies::host;
    }
    for (const Step& step : plan.steps) {
        if (step.verb == Verb::run) {
            for (const TensorId t : graph.op(step.id).reads) {
                if (fetched[at(t)]) {
                    append({PlanEvent::fetch, t});
                    fetched[at(t)] = 0;
                }
            }
            append({PlanEvent::run, step.id, step.skip});
        } else if (step.verb == Verb::offload) {
            append({PlanEvent::offload, step.id});
            sent[at(step.id)] = 1;
        } else {
            fetched[at(step.id)] = step.verb == Verb::prefetch;
            here[at(step.id)] = step.verb == Verb::prefetch;
        }
    }
    std::vector<Bytes> more(items_.size(), 0); // that are held from each item on, without touching it
    for (TensorId t = 0; at(t) < touches_.size(); ++t) {
        std::vector<ItemId>& touches = touches_[at(t)];
        if (here[at(t)] && !fetched[at(t)]) {
            touches.push_back(end);
        }
        if (graph.is_result(t) && !graph.persistent() && (here[at(t)] || sent[at(t)])) {
            results_.push_back(t);
        }
        for (std::size_t k = 0; k < touches.size(); ++k) {
            items_[at(touches[k])].usage += graph.tensor(t).bytes;
            if (held(t, k)) {
                more[at(items_[at(touches[k])].next)] += graph.tensor(t).bytes;
                more[at(touches[k + 1])] -= graph.tensor(t).bytes;
            }
        }
    }
    Bytes between = 0;
    for (ItemId id = items_[begin].next; id != end; id = items_[at(id)].next) {
        between += more[at(id)];
        items_[at(id)].usage += between + own(id);
    }
}

bool RunList::large(TensorId tensor) const { return graph_->tensor(tensor).bytes > capacity_ / large_share; }

std::span<const TensorId> RunList::reads(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    return event.what == PlanEvent::run       ? std::span<const TensorId>(graph_->op(event.id).reads)
           : event.what == PlanEvent::offload ? std::span(&event.id, 1)
                                              : std::span<const TensorId>();
}

std::span<const TensorId> RunList::writes(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    return event.what == PlanEvent::run     ? event.skip ? without_tape_[at(event.id)] : graph_->op(event.id).writes
           : event.what == PlanEvent::fetch ? std::span(&event.id, 1)
                                            : std::span<const TensorId>();
}

bool RunList::writes(ItemId id, TensorId tensor) const {
    if (id <= end) {
        return false;
    }
    const std::span<const TensorId> all = writes(id);
    if (all.size() <= few_writes) { // in the caches, as the writer of the tensor may not be
        return std::ranges::find(all, tensor) != all.end();
    }
    const PlanEvent& event = items_[at(id)].event;
    return graph_->writer(tensor) == event.id && !(event.skip && graph_->taped(tensor));
}

bool RunList::updates(ItemId id, TensorId tensor) const {
    const PlanEvent& event = items_[at(id)].event;
    return event.what == PlanEvent::run && std::ranges::count(graph_->op(event.id).updates, tensor) > 0;
}

Bytes RunList::own(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    return event.what == PlanEvent::run ? workspace(graph_->op(event.id), 0, event.skip) : 0;
}

std::size_t RunList::place(TensorId tensor, ItemId id) const {
    const std::vector<ItemId>& touches = touches_[at(tensor)];
    const auto found =
        std::ranges::lower_bound(touches, items_[at(id)].key, {}, [&](ItemId one) { return items_[at(one)].key; });
    return static_cast<std::size_t>(found - touches.begin());
}

bool RunList::held(TensorId tensor, std::size_t touch) const {
    return touch + 1 < touches_[at(tensor)].size() && !writes(touches_[at(tensor)][touch + 1], tensor);
}

// Whether the list may do without the item: what it writes was there before it, or is not read before it is written
// again.
bool RunList::repeated(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    if (event.what == PlanEvent::offload || (event.what == PlanEvent::run && runs_[at(event.id)] < 2)) {
        return false;
    }
    return std::ranges::none_of(writes(id), [&](TensorId t) { return place(t, id) == 0 && held(t, 0); });
}

RunList::ItemId RunList::link(ItemId previous, const PlanEvent& event) {
    if (unused_.empty()) {
        unused_.push_back(static_cast<ItemId>(items_.size()));
        items_.emplace_back();
    }
    const ItemId id = unused_.back();
    unused_.pop_back();
    items_[at(id)].event = event;
    items_[at(id)].place = items_in_.size();
    items_[at(id)].usage = 0;
    items_in_.push_back(id);
    items_[at(id)].previous = items_[at(id)].next = id;
    relink(id, previous);
    if (event.what == PlanEvent::run) {
        ++runs_[at(event.id)];
    }
    return id;
}

void RunList::relink(ItemId id, ItemId previous) {
    Item& item = items_[at(id)];
    items_[at(item.previous)].next = item.next;
    items_[at(item.next)].previous = item.previous;
    const ItemId next = items_[at(previous)].next;
    item.previous = previous;
    item.next = next;
    items_[at(previous)].next = items_[at(next)].previous = id;
    const std::int64_t before = items_[at(previous)].key;
    item.key = before + std::min((items_[at(next)].key - before) / 2, spacing);
    if (item.key == items_[at(previous)].key) {
        renumber();
    }
}

void RunList::unlink(ItemId id) {
    Item& item = items_[at(id)];
    items_[at(item.previous)].next = item.next;
    items_[at(item.next)].previous = item.previous;
    items_[at(items_in_.back())].place = item.place;
    items_in_[item.place] = items_in_.back();
    items_in_.pop_back();
    unused_.push_back(id);
    if (item.event.what == PlanEvent::run) {
        --runs_[at(item.event.id)];
    }
}

void RunList::renumber() {
    std::int64_t key = 0;
    for (ItemId id = begin; id != end; id = items_[at(id)].next) {
        items_[at(id)].key = key;
        key += spacing;
    }
}

void RunList::span(ItemId from, ItemId to, Bytes bytes) {
    for (ItemId id = items_[at(from)].next; id != to; id = items_[at(id)].next) {
        items_[at(id)].usage += bytes;
        fullest_ = std::max(fullest_, items_[at(id)].usage);
    }
}

void RunList::remove_touches(ItemId id) {
    for (const TensorId t : reads(id)) {
        std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, id);
        if (!held(t, k)) {
            span(touches[k - 1], id, -graph_->tensor(t).bytes);
        }
        touches.erase(touches.begin() + static_cast<std::ptrdiff_t>(k));
    }
    for (const TensorId t : writes(id)) {
        std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, id);
        if (held(t, k) && k > 0) { // now from the touch before
            span(touches[k - 1], id, graph_->tensor(t).bytes);
        } else if (held(t, k)) {
            span(id, touches[k + 1], -graph_->tensor(t).bytes);
        }
        touches.erase(touches.begin() + static_cast<std::ptrdiff_t>(k));
    }
}

void RunList::add_touches(ItemId id) {
    const ItemId previous = items_[at(id)].previous;
    Bytes usage = own(id);
    const auto passing = [&](std::span<const TensorId> tensors, Bytes sign, bool going) {
        for (const TensorId t : tensors) {
            usage += held(t, place(t, previous)) == going ? sign * graph_->tensor(t).bytes : 0;
        }
    };
    if (previous == begin) {
        passing(sources_, 1, true);
    } else { // what the item before holds, but for what ends there
        usage += items_[at(previous)].usage - own(previous);
        passing(reads(previous), -1, false);
        passing(writes(previous), -1, false);
    }
    for (const TensorId t : reads(id)) {
        std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, id);
        if (!held(t, k - 1)) {
            span(touches[k - 1], id, graph_->tensor(t).bytes);
            usage += graph_->tensor(t).bytes;
        }
        touches.insert(touches.begin() + static_cast<std::ptrdiff_t>(k), id);
    }
    for (const TensorId t : writes(id)) {
        std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, id);
        const bool over = k < touches.size() && !writes(touches[k], t);
        if (over && k > 0) { // now from here
            span(touches[k - 1], id, -graph_->tensor(t).bytes);
        } else {
            usage += graph_->tensor(t).bytes;
            if (over) {
                span(id, touches[k], graph_->tensor(t).bytes);
            }
        }
        touches.insert(touches.begin() + static_cast<std::ptrdiff_t>(k), id);
    }
    items_[at(id)].usage = usage;
    fullest_ = std::max(fullest_, usage);
}

// Whether anybody reads, on the device or on the host, what it transfers. A result is for whoever called.
bool RunList::useful(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    if (event.what == PlanEvent::run) {
        return true;
    }
    const auto what = [&](ItemId one) { return items_[at(one)].event.what; };
    const std::vector<ItemId>& touches = touches_[at(event.id)];
    const auto next = touches.begin() + static_cast<std::ptrdiff_t>(place(event.id, id)) + 1;
    if (event.what == PlanEvent::offload && graph_->tensor(event.id).persistent()) { // the copy is read, or stays
        const auto use = std::find_if(
            next, touches.end(), [&](ItemId one) { return what(one) == PlanEvent::fetch || updates(one, event.id); });
        return use == touches.end() ? border_[at(event.id)] != Copies::device : what(*use) == PlanEvent::fetch;
    }
    if (event.what == PlanEvent::offload) {
        return next == touches.end() || (graph_->is_result(event.id) && !graph_->persistent()) ||
               std::any_of(next, touches.end(), [&](ItemId one) { return what(one) == PlanEvent::fetch; });
    }
    const auto use = std::find_if(next, touches.end(), [&](ItemId one) { return what(one) != PlanEvent::offload; });
    return use != touches.end() && !writes(*use, event.id);
}

std::optional<std::vector<PlanEvent>> RunList::events() const {
    std::vector<PlanEvent> events;
    std::vector<std::uint8_t> here(touches_.size(), 0), sent(touches_.size(), 0);
    const std::vector<TensorId> none;
    for (const TensorId t : sources_) {
        here[at(t)] = 1;
    }
    for (std::size_t t = 0; t < border_.size(); ++t) {
        sent[t] = border_[t] != Copies::device;
    }
    for (ItemId id = begin; id != end; id = items_[at(id)].next) {
        const PlanEvent& event = items_[at(id)].event;
        if (event.what == PlanEvent::offload && here[at(event.id)] && !sent[at(event.id)] && useful(id)) {
            sent[at(event.id)] = 1;
            events.push_back(event);
        } else if (event.what == PlanEvent::run || (event.what == PlanEvent::fetch && useful(id))) {
            events.push_back(event);
            for (const TensorId t : writes(id)) {
                here[at(t)] = 1;
            }
            for (const TensorId t : event.what == PlanEvent::run ? graph_->op(event.id).updates : none) {
                sent[at(t)] = 0; // the copy is stale
            }
        }
        for (const auto& some : {id == begin ? sources_ : reads(id), writes(id)}) {
            for (const TensorId t : some) {
                if (here[at(t)] && !held(t, place(t, id))) {
                    here[at(t)] = 0;
                    events.push_back({PlanEvent::free, t});
                }
            }
        }
    }
    const bool kept = std::ranges::all_of(results_, [&](TensorId t) { return here[at(t)] || sent[at(t)]; });
    return kept ? std::optional(std::move(events)) : std::nullopt;
}

} // namespace memsched
