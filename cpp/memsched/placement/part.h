// One part of a placement problem: buffers linked by time, with time as sections. Parts are placed separately.
#pragma once

#include "memsched/placement/buffers.h"
#include "memsched/placement/obstacles.h"
#include "memsched/support/id_lists.h"

#include <cstdint>
#include <span>
#include <vector>

namespace memsched::placement {

// A section is a maximal set of buffers alive at once: two buffers overlap in time if they share one. Buffers are
// sorted by first section, so the buffers of a range of sections that no other buffer crosses are a range too. Columns
// are by buffer of the part, unless stated otherwise.
struct Part {
    std::vector<BufferId> id;           // in the problem's list
    std::vector<SectionId> first, last; // its sections: [first, last)
    std::vector<std::int64_t> length;   // ticks
    std::vector<Bytes> bytes, fixed;
    std::vector<Bytes> extent;     // bytes up to the next multiple of `unit`: no other buffer can use the rest
    std::vector<Bytes> alignment;  // 1 if any multiple of the unit is allowed
    std::vector<BufferId> fixings; // the fixed ones of the part, by offset
    Obstacles obstacles;           // occupied bytes; adjacent ones with equal lifetimes are merged
    std::vector<Bytes> room;       // by section: the extents of all its buffers
    std::vector<Bytes> slack;      // by section: the largest extent - bytes, which the topmost buffer may save
    Bytes unit = 1;                // all offsets are multiples of it
    Bytes least = 0;               // no placement of the part is lower

    std::size_t size() const { return id.size(); }
    std::size_t sections() const { return room.size(); }
};

// Buffers that occupy nothing belong to no part.
std::vector<Part> parts_of(std::span<const Buffer> buffers);

// By section: the largest value (one per buffer) of the buffers alive in it, at least 0. In one scan.
std::vector<Bytes> most_by_section(const Part& part, const std::vector<Bytes>& values);

std::int64_t count_members(const Part& part); // buffers, summed over the sections

// The least offset >= floor that is aligned for the free buffer b and clear of the fixed buffers that it shares a
// section with.
inline Bytes lowest_offset(const Part& part, BufferId b, Bytes floor) {
    if (part.fixings.empty()) {
        return align_up(floor, part.alignment[at(b)]);
    }
    return part.obstacles.lowest(part.first[at(b)], part.last[at(b)], part.bytes[at(b)], part.alignment[at(b)], floor);
}

} // namespace memsched::placement
