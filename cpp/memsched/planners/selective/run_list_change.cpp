#include "memsched/planners/selective/run_list.h"

#include "memsched/support/mix.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr int tries = 20;       // to find an item of some kind
constexpr int most_to_give = 8; // tensors that give way after an item is removed
constexpr int near = 8;         // the farthest of the short ways to move an item

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

// Whatever the list holds then; false if nobody has written what the item reads.
bool RunList::insert(const PlanEvent& event, ItemId previous) {
    const ItemId id = link(previous, event);
    if (!readable(id)) {
        unlink(id);
        return false;
    }
    add_touches(id);
    return true;
}

bool RunList::add(const PlanEvent& event, ItemId previous) {
    fullest_ = 0;
    if (!insert(event, previous)) {
        return false;
    }
    if (fullest_ <= capacity_) {
        return true;
    }
    const ItemId id = items_[at(previous)].next;
    remove_touches(id);
    unlink(id);
    return false;
}

// Whether the host has a copy that is still good.
bool RunList::sent_before(TensorId tensor, ItemId id) const {
    for (std::size_t k = place(tensor, id); k-- > 0;) {
        const ItemId one = touches_[at(tensor)][k];
        if (items_[at(one)].event.what == PlanEvent::offload || updates(one, tensor)) {
            return !updates(one, tensor);
        }
    }
    return border_[at(tensor)] != Copies::device;
}

// Whether somebody has written what a new item reads, and, if the op has run before, nobody has changed it since.
bool RunList::readable(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    return std::ranges::all_of(reads(id), [&](TensorId t) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        std::size_t k = place(t, id);
        const bool written = k > 0;
        const auto ran = [&](ItemId one) {
            return items_[at(one)].event.what == PlanEvent::run && items_[at(one)].event.id == event.id;
        };
        if (event.what != PlanEvent::run || !graph_->tensor(t).persistent()) {
            return written;
        }
        for (; k > 0 && !ran(touches[k - 1]); --k) {
            if (updates(touches[k - 1], t)) {
                return false;
            }
        }
        return written;
    });
}

PlanEvent RunList::run_for(TensorId tensor) const {
    const Op& op = graph_->op(graph_->writer(tensor));
    return {PlanEvent::run, graph_->writer(tensor), !graph_->taped(tensor) && !op.tape.empty()};
}

// The tensor comes back right before this item, which reads it, and need not stay since the touch before.
void RunList::bring(ItemId id, TensorId tensor, Seconds temperature, std::mt19937_64& random) {
    const ItemId before = touches_[at(tensor)][place(tensor, id) - 1];
    const bool empty = graph_->tensor(tensor).persistent() && graph_->tensor(tensor).bytes == 0;
    if (before == items_[at(id)].previous || empty) { // copies of what has no bytes make no room
        return;
    }
    if (linked_ && (!graph_->repeatable(tensor) || random() % 2 != 0)) {
        if (sent_before(tensor, id) || add({PlanEvent::offload, tensor}, before)) {
            add({PlanEvent::fetch, tensor}, items_[at(id)].previous);
        }
    } else if (graph_->repeatable(tensor)) {
        const Seconds time = graph_->op(graph_->writer(tensor)).choices[0].time;
        if (share(random) < std::exp(-time / temperature)) {
            add(run_for(tensor), items_[at(id)].previous);
        }
    }
}

RunList::ItemId RunList::fullest() const {
    ItemId found = items_[begin].next;
    for (ItemId id = found; id != end; id = items_[at(id)].next) {
        found = items_[at(id)].usage > items_[at(found)].usage ? id : found;
    }
    return found;
}

// Some large tensor that is held here and not touched comes back right before it is read.
bool RunList::give_way(ItemId over, std::mt19937_64& random) {
    TensorId tensor = -1;
    ItemId reader = end;
    std::uint64_t seen = 0;
    for (const TensorId t : large_) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, over);
        const bool passes = k > 0 && k < touches.size() && touches[k] != over && touches[k] != end && held(t, k - 1);
        if (passes && random() % ++seen == 0) { // each with the same chance
            tensor = t;
            reader = touches[k];
        }
    }
    if (tensor < 0) {
        return false;
    }
    const ItemId previous = items_[at(reader)].previous;
    if (graph_->repeatable(tensor) && (!linked_ || random() % 2 == 0)) {
        return insert(run_for(tensor), previous);
    }
    const ItemId before = touches_[at(tensor)][place(tensor, reader) - 1];
    return (sent_before(tensor, reader) || insert({PlanEvent::offload, tensor}, before)) &&
           insert({PlanEvent::fetch, tensor}, items_[at(reader)].previous);
}

// Between the items that write what it reads and those that read what it writes.
void RunList::move(ItemId id, std::mt19937_64& random) {
    ItemId low = begin, high = end;
    const auto key = [&](ItemId one) { return items_[at(one)].key; };
    const auto raise = [&](ItemId one) { low = key(one) > key(low) ? one : low; };
    const auto lower = [&](ItemId one) { high = key(one) < key(high) ? one : high; };
    if (graph_->persistent()) {
        lower(items_[end].previous); // the last run, which may read what must be there at the border
        if (high == id) {
            return;
        }
    }
    for (const TensorId t : reads(id)) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t here = place(t, id);
        const bool alone = updates(id, t);
        const auto ends = [&](ItemId one) { return alone || writes(one, t) || updates(one, t); };
        std::size_t k = here;
        for (; k > 0 && !ends(touches[k - 1]); --k) {
        }
        raise(k > 0 ? touches[k - 1] : begin);
        for (k = here + 1; k < touches.size() && !ends(touches[k]); ++k) {
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

RunList::ItemId RunList::any_repeated(std::mt19937_64& random) const {
    for (int k = 0; k < tries; ++k) {
        if (const ItemId id = items_in_[random() % items_in_.size()]; repeated(id)) {
            return id;
        }
    }
    return end;
}

bool RunList::exchange(std::mt19937_64& random) {
    const ItemId id = any_repeated(random);
    if (id == end) {
        return false;
    }
    remove_touches(id);
    unlink(id);
    for (int left = most_to_give;; --left) {
        const ItemId over = fullest();
        if (items_[at(over)].usage <= capacity_) {
            return true;
        }
        if (left == 0 || !give_way(over, random)) {
            return false;
        }
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
