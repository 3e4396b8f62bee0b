// Buffers to be placed in one arena: a lifetime and a number of bytes each. Rules that any placement must obey.
#pragma once

#include "memsched/support/units.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace memsched::placement {

using BufferId = std::int32_t; // index into a list of buffers

inline constexpr Bytes free_offset = -1;

// Alive in the ticks [start, end). Two buffers that share a tick may not share a byte. A buffer without a lifetime or
// without bytes conflicts with none: it goes to its fixed offset, or else to 0. The arena has room for it there.
struct Buffer {
    std::int64_t start = 0, end = 0;
    Bytes bytes = 0;
    Bytes alignment = 1;
    Bytes offset = free_offset; // fixed here if >= 0
};

inline bool occupies(const Buffer& buffer) { return buffer.start < buffer.end && buffer.bytes > 0; }
inline bool is_fixed(const Buffer& buffer) { return buffer.offset != free_offset; }

// The least multiple of alignment that is >= offset.
inline Bytes align_up(Bytes offset, Bytes alignment) {
    const Bytes over = alignment == 1 ? 0 : offset % alignment;
    return over == 0 ? offset : offset + (alignment - over);
}

// Throws std::invalid_argument for an invalid buffer, for two fixed ones that collide, and if all sizes with their
// padding on top of the highest fixed buffer exceed 62 bits. Everything else here relies on this check.
void check_buffers(std::span<const Buffer> buffers);

// The starts (tick, id) and the ends (tick, ~id) of all that occupies something, in order of time; ends come before
// starts of the same tick.
std::vector<std::pair<std::int64_t, BufferId>> events(std::span<const Buffer> buffers);

// The largest sum of sizes alive at once: no placement is lower.
Bytes load(std::span<const Buffer> buffers);

} // namespace memsched::placement
