// The list of runs and transfers of a plan, and changes to it at random.
#pragma once

#include "memsched/build/fetch_places.h"
#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace memsched {

// A tensor is held from each touch (an item of the list that writes or reads it) to the next one, unless that writes
// it. So the list alone says what is held, and a change of one item changes that only between neighbouring touches. No
// change makes the list hold more than the capacity.
class RunList {
  public:
    RunList() = default;
    // plan: legal, with one choice for each op, and none on the host. capacity: bytes, without resident. linked:
    // whether tensors may travel. Of a plan that is repeated, persistent tensors stay where they are at the border, and
    // the last run stays last. Keeps a reference to graph.
    RunList(const Graph& graph, const StepList& plan, Bytes capacity, bool linked);

    // Removes, adds or moves an item, or does nothing. A run is added the more likely, the less time it takes beside
    // `temperature`.
    void change(Seconds temperature, std::mt19937_64& random);
    // Removes an item; where the list then holds more than the capacity, some tensor leaves and comes back, and so on.
    // False if that does not end: then the list holds too much.
    bool exchange(std::mt19937_64& random);
    // Without transfers: removes a run and what only served it. Where the list then holds more than the capacity, large
    // tensors leave and come back, by runs and by what these need. Undone unless all runs together take hardly longer:
    // by `temperature` times a number with exponential distribution, at most. Returns whether the list changed.
    bool trade(Seconds temperature, std::mt19937_64& random);
    // None if a result, which no op reads, is neither kept nor sent, though the plan did so at first.
    std::optional<std::vector<PlanEvent>> events() const;
    // By tensor: where it is at the border, before a fetch for the next repetition.
    const std::vector<Copies>& border() const { return border_; }
    // The time of all runs.
    Seconds time() const;

  private:
    using ItemId = std::int32_t;
    static constexpr ItemId begin = 0, end = 1;
    struct Item {
        PlanEvent event{PlanEvent::run, -1};
        ItemId previous = begin, next = end;
        std::int64_t key = 0;  // rises along the list
        Bytes usage = 0;       // bytes held while it runs
        std::size_t place = 0; // in items_in_
    };

    std::span<const TensorId> reads(ItemId id) const;
    std::span<const TensorId> writes(ItemId id) const;
    bool writes(ItemId id, TensorId tensor) const;
    bool updates(ItemId id, TensorId tensor) const;
    Bytes own(ItemId id) const; // workspace
    bool useful(ItemId id) const;
    std::size_t place(TensorId tensor, ItemId id) const; // of the item, or where it belongs, among the touches
    bool held(TensorId tensor, std::size_t touch) const; // from this touch to the next
    bool repeated(ItemId id) const;

    ItemId link(ItemId previous, const PlanEvent& event);
    void relink(ItemId id, ItemId previous);
    void unlink(ItemId id);
    void renumber();
    void span(ItemId from, ItemId to, Bytes bytes); // more bytes held between
    void add_touches(ItemId id);
    void remove_touches(ItemId id);

    ItemId any_repeated(std::mt19937_64& random) const; // or `end`, if none was found
    bool sent_before(TensorId tensor, ItemId id) const;
    bool readable(ItemId id) const;
    PlanEvent run_for(TensorId tensor) const;
    ItemId fullest() const;
    bool give_way(ItemId over, std::mt19937_64& random);

    // Parts of a trade, which are recorded.
    struct Edit {
        ItemId id = begin, previous = begin;
        PlanEvent event{PlanEvent::run, -1};
        bool added = false;
    };
    Seconds time(ItemId id) const;
    bool large(TensorId tensor) const;
    bool idle(ItemId id) const;
    ItemId large_repeated(std::mt19937_64& random) const;
    void put(const PlanEvent& event, ItemId previous);
    void take(ItemId id);
    void take_all(ItemId id);
    void undo();
    bool rerun(TensorId tensor, ItemId reader, int depth, std::mt19937_64& random);
    bool make_room(ItemId over, std::mt19937_64& random);

    void remove(ItemId id);
    bool insert(const PlanEvent& event, ItemId previous);
    bool add(const PlanEvent& event, ItemId previous);
    void move(ItemId id, std::mt19937_64& random);
    void bring(ItemId id, TensorId tensor, Seconds temperature, std::mt19937_64& random);

    const Graph* graph_ = nullptr;
    Bytes capacity_ = 0, fullest_ = 0; // the most that a changed item holds
    bool linked_ = false;
    std::vector<std::vector<TensorId>> without_tape_; // by op
    std::vector<Item> items_;
    std::vector<ItemId> items_in_, unused_;
    std::vector<std::vector<ItemId>> touches_; // by tensor, in the order of the list
    std::vector<std::int32_t> runs_;           // by op
    std::vector<Copies> border_;               // by tensor
    std::vector<TensorId> sources_, large_;    // there at the start; tensors that may come back and make room
    std::vector<TensorId> results_;            // that stay
    std::vector<Edit> edits_;                  // of the trade under way,
    Seconds more_ = 0, most_ = 0;              // the time that it adds, and the most that it may add
};

} // namespace memsched
