// Buffers to be placed in one arena: a lifetime and a number of bytes each. What any placement of them must obey.
#pragma once

#include "memsched/support/units.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace memsched::placement {

using BufferId = std::int32_t; // index into a list of buffers

inline constexpr Bytes free_offset = -1;

// Alive in the ticks [start, end). Two buffers that share a tick may not share a byte. One without a lifetime or
// without bytes is in nobody's way: it goes to its fixed offset, or else to 0. The arena has room for it there.
struct Buffer {
    std::int64_t start = 0, end = 0;
    Bytes bytes = 0;
    Bytes alignment = 1;
    Bytes offset = free_offset; // fixed here if it is >= 0
};

inline bool occupies(const Buffer& buffer) { return buffer.start < buffer.end && buffer.bytes > 0; }
inline bool is_fixed(const Buffer& buffer) { return buffer.offset != free_offset; }

// The least multiple of alignment that is >= offset.
inline Bytes align_up(Bytes offset, Bytes alignment) {
    const Bytes over = alignment == 1 ? 0 : offset % alignment;
    return over == 0 ? offset : offset + (alignment - over);
}

// Throws std::invalid_argument for a buffer that cannot be, for two fixed ones that collide, and where all sizes with
// their padding on top of the highest fixed buffer leave 62 bits. All else here trusts checked ones.
void check_buffers(std::span<const Buffer> buffers);

// The largest sum of sizes alive at once: no placement is lower.
Bytes load(std::span<const Buffer> buffers);

// The end of the highest buffer, whether it is ever alive or not.
Bytes height(std::span<const Buffer> buffers, std::span<const Bytes> offsets);

} // namespace memsched::placement
