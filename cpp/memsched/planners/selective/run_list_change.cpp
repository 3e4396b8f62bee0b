#include "memsched/planners/selective/run_list.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr int tries = 20; // to find an item of some kind
constexpr int near = 8;   // the farthest of the short ways to move an item

double share(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

} // namespace

void RunList::remove(ItemId id) {
    fullest_ = 0;
    remove_touches(id);
    if (fullest_ > capacity_) {
        add_touches(id);
    } else {
        unlink(id);
    }
}

bool RunList::add(const PlanEvent& event, ItemId previous) {
    const ItemId id = link(previous, event);
    const auto unwritten = [&](TensorId t) { return place(t, id) == 0; };
    fullest_ = 0;
    if (std::ranges::none_of(reads(id), unwritten)) {
        add_touches(id);
        if (fullest_ <= capacity_) {
            return true;
        }
        remove_touches(id);
    }
    unlink(id);
    return false;
}

// The tensor comes back right before this item, which reads it, and need not stay since the touch before.
void RunList::bring(ItemId id, TensorId tensor, Seconds temperature, std::mt19937_64& random) {
    const std::vector<ItemId>& touches = touches_[at(tensor)];
    const std::size_t k = place(tensor, id);
    const ItemId before = touches[k - 1];
    if (before == items_[at(id)].previous) {
        return;
    }
    if (linked_ && (!repeatable(tensor) || random() % 2 != 0)) {
        const bool sent = std::any_of(touches.begin(), touches.begin() + static_cast<std::ptrdiff_t>(k),
                                      [&](ItemId one) { return items_[at(one)].event.what == PlanEvent::offload; });
        if (sent || add({PlanEvent::offload, tensor}, before)) {
            add({PlanEvent::fetch, tensor}, items_[at(id)].previous);
        }
    } else if (repeatable(tensor)) {
        const Op& op = graph_->op(graph_->writer(tensor));
        const bool taped = std::ranges::find(op.tape, tensor) != op.tape.end();
        if (share(random) < std::exp(-op.choices[0].time / temperature)) {
            add({PlanEvent::run, graph_->writer(tensor), !taped && !op.tape.empty()}, items_[at(id)].previous);
        }
    }
}

// Between the items that write what it reads and those that read what it writes.
void RunList::move(ItemId id, std::mt19937_64& random) {
    ItemId low = begin, high = end;
    const auto key = [&](ItemId one) { return items_[at(one)].key; };
    const auto raise = [&](ItemId one) { low = key(one) > key(low) ? one : low; };
    const auto lower = [&](ItemId one) { high = key(one) < key(high) ? one : high; };
    for (const TensorId t : reads(id)) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t here = place(t, id);
        std::size_t k = here;
        for (; k > 0 && !writes(touches[k - 1], t); --k) {
        }
        raise(k > 0 ? touches[k - 1] : begin);
        for (k = here + 1; k < touches.size() && !writes(touches[k], t); ++k) {
        }
        lower(k < touches.size() ? touches[k] : end);
    }
    for (const TensorId t : writes(id)) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, id);
        raise(k > 0 ? touches[k - 1] : begin);
        lower(k + 1 < touches.size() ? touches[k + 1] : end);
    }
    ItemId to = id; // goes right after this one
    const auto kind = random() % 4;
    auto steps = 1 + random() % near;
    if (kind == 0) {
        to = low;
    } else if (kind == 1) {
        to = items_[at(high)].previous;
    } else if (kind == 2) {
        for (++steps; steps > 0 && to != low; --steps) {
            to = items_[at(to)].previous;
        }
    } else {
        for (; steps > 0 && items_[at(to)].next != high; --steps) {
            to = items_[at(to)].next;
        }
    }
    const ItemId from = items_[at(id)].previous;
    if (to == id || to == from) {
        return;
    }
    remove_touches(id);
    relink(id, to);
    fullest_ = 0;
    add_touches(id);
    const ItemId first = key(from) < key(to) ? from : to, last = first == from ? to : from;
    for (ItemId one = items_[at(first)].next; one != items_[at(last)].next && one != end; one = items_[at(one)].next) {
        fullest_ = std::max(fullest_, items_[at(one)].usage); // what it touches may be held longer
    }
    if (fullest_ > capacity_) {
        remove_touches(id);
        relink(id, from);
        add_touches(id);
    }
}

void RunList::change(Seconds temperature, std::mt19937_64& random) {
    const auto kind = random() % 3;
    const bool large = random() % 2 != 0; // rather where much is held
    ItemId id = items_in_[random() % items_in_.size()];
    if (kind == 0) {
        for (int k = 0; k < tries && !repeated(id); ++k) {
            id = items_in_[random() % items_in_.size()];
        }
        if (repeated(id)) {
            remove(id);
        }
    } else if (kind == 1 && large && !large_.empty()) {
        const TensorId t = large_[random() % large_.size()];
        id = touches_[at(t)].empty() ? end : touches_[at(t)][random() % touches_[at(t)].size()];
        if (id > end && !writes(id, t)) {
            bring(id, t, temperature, random);
        }
    } else if (kind == 1) {
        if (!reads(id).empty()) {
            bring(id, reads(id)[random() % reads(id).size()], temperature, random);
        }
    } else if (items_[at(id)].event.what == PlanEvent::run) {
        move(id, random);
    }
}

} // namespace memsched
