#include "memsched/planners/selective/run_list.h"

#include "memsched/support/mix.h"

#include <algorithm>
#include <cmath>

namespace memsched {
namespace {

constexpr int looks = 40;             // for a large tensor that can leave
constexpr int retries = 5;            // for a run that writes something large
constexpr int most_evictions = 6;     // after a run is removed
constexpr int deepest = 24;           // of the runs that a tensor takes to come back
constexpr unsigned seldom_longer = 8; // of so many inputs that are gone, one is held longer instead of made again

} // namespace

Seconds RunList::time(ItemId id) const {
    const PlanEvent& event = items_[at(id)].event;
    return event.what == PlanEvent::run ? graph_->op(event.id).choices[0].time : 0;
}

Seconds RunList::time() const {
    Seconds sum = 0;
    for (ItemId id = items_[begin].next; id != end; id = items_[at(id)].next) {
        sum += time(id);
    }
    return sum;
}

// Whether the list may do without the run and nobody reads what it writes before that is written again.
bool RunList::idle(ItemId id) const {
    return repeated(id) && std::ranges::none_of(writes(id), [&](TensorId t) { return held(t, place(t, id)); });
}

RunList::ItemId RunList::large_repeated(std::mt19937_64& random) const {
    ItemId id = any_repeated(random);
    const auto small = [&](TensorId t) { return !large(t); };
    for (int k = 0; k < retries && id != end && std::ranges::all_of(writes(id), small); ++k) {
        id = any_repeated(random);
    }
    return id;
}

void RunList::put(const PlanEvent& event, ItemId previous) {
    const ItemId id = link(previous, event);
    add_touches(id);
    edits_.push_back({id, previous, event, true});
    more_ += time(id);
}

void RunList::take(ItemId id) {
    edits_.push_back({id, items_[at(id)].previous, items_[at(id)].event, false});
    more_ -= time(id);
    remove_touches(id);
    unlink(id);
}

// Last in, first out, so that each item gets back the number that it had.
void RunList::undo() {
    for (; !edits_.empty(); edits_.pop_back()) {
        const Edit& edit = edits_.back();
        if (edit.added) {
            remove_touches(edit.id);
            unlink(edit.id);
        } else {
            add_touches(link(edit.previous, edit.event));
        }
    }
}

// The run, and then those that only served it.
void RunList::take_all(ItemId id) {
    std::vector<TensorId> open(reads(id).begin(), reads(id).end());
    ItemId before = items_[at(id)].previous; // what served it comes no later
    take(id);
    while (!open.empty()) {
        const TensorId t = open.back();
        open.pop_back();
        const std::vector<ItemId>& touches = touches_[at(t)];
        std::size_t k = place(t, before);
        k += k < touches.size() && touches[k] == before;
        const ItemId last = k > 0 ? touches[k - 1] : begin;
        if (!writes(last, t) || !idle(last)) {
            continue;
        }
        open.insert(open.end(), reads(last).begin(), reads(last).end());
        before = before == last ? items_[at(last)].previous : before;
        take(last);
    }
}

// The tensor comes back right before this item, which reads it, and need not stay since the touch before. So does what
// that takes and is not there.
bool RunList::rerun(TensorId tensor, ItemId reader, int depth, std::mt19937_64& random) {
    if (!graph_->repeatable(tensor) || depth == 0 || more_ > most_) {
        return false;
    }
    const PlanEvent event = run_for(tensor);
    const std::vector<TensorId>& needed = graph_->op(event.id).reads;
    if (!readable(link(items_[at(reader)].previous, event))) {
        unlink(items_[at(reader)].previous);
        return false;
    }
    unlink(items_[at(reader)].previous);
    put(event, items_[at(reader)].previous);
    const ItemId run = items_[at(reader)].previous;
    for (const TensorId t : needed) {
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t k = place(t, run);
        const bool there = held(t, k) || touches[k - 1] == items_[at(run)].previous;
        if (!there && large(t) && random() % seldom_longer != 0 && !rerun(t, run, depth - 1, random)) {
            return false;
        }
    }
    return true;
}

// Some large tensor that is held here and not touched comes back right before it is read.
bool RunList::make_room(ItemId over, std::mt19937_64& random) {
    for (int k = 0; k < looks; ++k) {
        const TensorId t = large_[random() % large_.size()];
        const std::vector<ItemId>& touches = touches_[at(t)];
        const std::size_t next = place(t, over);
        if (next > 0 && next < touches.size() && touches[next] > end && touches[next] != over && held(t, next - 1)) {
            return rerun(t, touches[next], deepest, random);
        }
    }
    return false;
}

bool RunList::trade(Seconds temperature, std::mt19937_64& random) {
    const ItemId id = large_repeated(random);
    if (id == end || large_.empty()) {
        return false;
    }
    edits_.clear();
    more_ = 0;
    most_ = -temperature * std::log1p(-share(random));
    fullest_ = 0;
    take_all(id);
    if (fullest_ <= capacity_) {
        return true; // more_ < 0
    }
    ItemId over = fullest();
    for (int left = most_evictions; items_[at(over)].usage > capacity_; --left, over = fullest()) {
        if (left == 0 || !make_room(over, random)) {
            undo();
            return false;
        }
    }
    if (more_ > most_) {
        undo();
        return false;
    }
    return true;
}

} // namespace memsched
