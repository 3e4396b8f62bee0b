// An exact search for a placement of one part within a capacity, in the manner of MiniMalloc (Moffitt, ASPLOS 2023).
#pragma once

#include "memsched/placement/greedy.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace memsched::placement {

// The order of buffers that can go equally low: by keys; within a piece, again by what is left there.
struct Order {
    Keys keys;
    bool anew = true;
};

// Depth first over canonical placements: buffers by offset, ties by rank by the keys, each resting on what is placed
// below it: at the least offset that suits its alignment and is clear of the remaining fixed ones. If a part fits at
// all, the placement with the least sum of offsets is among them. Pruned are: a buffer that would leave a gap where
// another one fits; a section whose floor and remaining buffers exceed the capacity. A buffer that has been tried at
// its place is lifted for the rest of its level, since it can only rest on a remaining one. Pieces of time that no
// remaining buffer links are searched separately. With any alignments and fixed offsets `none` is a proof; the source
// says why. One object may run many times.
class Search {
  public:
    enum class Outcome { found, none, stopped };

    explicit Search(const Part& part);

    // Stops after this many nodes, or when told to.
    Outcome run(const Order& order, Bytes capacity, std::int64_t nodes, const Progress& progress);

    const Offsets& offsets() const { return offsets_; } // after `found`
    Bytes next_capacity() const { return next_; }       // after `none`: no smaller capacity gives another result

  private:
    struct Range {
        SectionId first, last; // sections
        BufferId begin, end;   // all buffers in them, placed or not
    };
    struct Candidate {
        Bytes offset;
        BufferId b;
    };
    struct Position { // the last placed buffer: all others come after it
        Bytes offset;
        std::int32_t rank;
    };
    struct OffsetChange {
        BufferId b;
        Bytes rest, lowest;
    };
    struct FloorChange {
        SectionId s;
        BufferId witness;
        Bytes floor;
    };
    struct Mark { // sizes of the stacks
        std::size_t order, offsets, floors, ranks;
    };

    void reset(Bytes capacity);
    Outcome search(const Range& range, Position after);
    bool add_candidates(const Range& range, Position after);
    Outcome place(const Range& range, const Candidate& candidate);
    Outcome search_pieces(const Range& range, BufferId placed, Position after);
    void rank(const Range& piece);
    bool lift_overlapping(BufferId b, Bytes top);
    bool lift_floors(SectionId first, SectionId last, Bytes offset);
    bool lift_floor(SectionId s, Bytes offset);
    bool skip(const Candidate& candidate);
    bool fits(Bytes top);
    bool told_to_stop();
    Mark here() const;
    void undo(const Mark& mark);

    const Part& part_;
    IdLists members_, overlaps_;
    Order rule_;
    const Progress* progress_ = nullptr;
    SectionId hot_ = 0; // the section that failed last is checked first
    Bytes capacity_ = 0, next_ = 0;
    std::int64_t nodes_ = 0, most_nodes_ = 0;
    std::int64_t work_ = 0; // since the last check whether to stop

    // by buffer
    std::vector<Bytes> rest_;   // where it would rest on placed buffers, or `gone` once it is placed itself
    std::vector<Bytes> lowest_; // no canonical placement has it lower; at least rest_
    std::vector<std::uint8_t> placed_;
    Ranks ranks_;
    Offsets offsets_;
    // by section
    std::vector<Bytes> floor_;      // the least lowest_ of its buffers
    std::vector<BufferId> witness_; // one of them
    std::vector<Bytes> left_;       // the room of buffers not yet placed, minus the slack
    std::vector<std::int32_t> cut_; // how many of those continue into the next section

    std::vector<Candidate> candidates_; // stacks, shared by all levels
    std::vector<BufferId> order_;       // in the order of placement
    std::vector<OffsetChange> offset_changes_;
    std::vector<FloorChange> floor_changes_;
    std::vector<std::pair<BufferId, std::int32_t>> rank_changes_;
};

} // namespace memsched::placement
