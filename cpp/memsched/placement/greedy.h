// Fast placements of one part by rules of thumb. They throw Stopped when told to stop, since half a placement is
// useless.
#pragma once

#include "memsched/placement/part.h"
#include "memsched/support/progress.h"

#include <vector>

namespace memsched::placement {

using Offsets = std::vector<Bytes>; // by buffer of a part
using Ranks = std::vector<std::int32_t>;

// Keys by which buffers are ranked, largest first: bytes * ticks, bytes, ticks, the largest room of any of its
// sections, the latest end, the earliest start, the number of sections.
enum class Key { area, bytes, width, room, last, first, sections };

using Keys = std::vector<Key>;

// By buffer: its rank when sorted by these keys in turn, then by its index in the part.
Ranks rank_by(const Part& part, const Keys& keys);

// The value of a key for a buffer; the largest goes first. room: the largest room of any of its sections.
std::int64_t value_of(const Part& part, BufferId b, Key key, Bytes room);

// Always places the buffer that can go lowest (on ties, the one of least rank), so that the part grows like a skyline.
// About O(n^2), also with fixed buffers.
Offsets skyline(const Part& part, const Ranks& ranks, Pace& pace);

// The same on top of all fixed buffers, seen from the skyline: the lowest valley takes the buffer of least rank that
// fits into it, or is filled up to its lower neighbour. About O(n log n). Space below a fixed buffer stays empty.
Offsets skyline_by_valleys(const Part& part, const Ranks& ranks, Pace& pace);

// By rank, each in the lowest gap where it fits, or in the tightest one. O(n^2).
Offsets fit_in_order(const Part& part, const Ranks& ranks, bool tightest, Pace& pace);

// Stacks all buffers on top of the fixed ones; takes no time.
Offsets pile(const Part& part);

// Steiner et al. (2022), function 5: buffers whose lifetimes nest go first, the longest at the bottom, as a pyramid;
// all others after them by size.
Ranks pyramid_ranks(const Part& part);

Bytes height_of(const Part& part, const Offsets& offsets);

} // namespace memsched::placement
