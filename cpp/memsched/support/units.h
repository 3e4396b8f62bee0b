// Units of measure shared by the whole core, and the checked arithmetic on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace memsched {

using Bytes = std::int64_t;    // memory
using Seconds = double;        // time
using Bandwidth = double;      // bytes per second; 0 means no link, infinity a free one
using TensorId = std::int32_t; // index into Graph::tensors
using OpId = std::int32_t;     // index into Graph::ops
using StepId = std::int32_t;   // index into a list of steps

constexpr Seconds never = std::numeric_limits<Seconds>::infinity();

// What a count of bytes may be, and the sizes of a problem together: up to there doubles are exact, so that bounds,
// which mix bytes with seconds, do not round.
constexpr Bytes exact_bytes = Bytes{1} << 53;

// What the times of a problem may be together: sums of a million of them are still finite.
constexpr Seconds most_seconds = 1e302;

// An id as an index.
inline std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

[[noreturn]] void refuse_sum(const std::string& what);

[[noreturn]] void refuse_size(const std::string& what, Bytes bytes);

// Throws std::invalid_argument naming what() where there are less than 0 bytes.
template <class What> void check_size(Bytes bytes, const What& what) {
    if (bytes < 0) {
        refuse_size(what(), bytes);
    }
}

// a + b, neither above exact_bytes; throws std::invalid_argument naming what() when the sum is.
template <class What> Bytes checked_add(Bytes a, Bytes b, const What& what) {
    if (a > exact_bytes || b > exact_bytes - a) {
        refuse_sum(what());
    }
    return a + b;
}

// The duration of a transfer of `bytes`; the caller has made sure that bandwidth > 0.
Seconds transfer_time(Bytes bytes, Bandwidth bandwidth, Seconds latency);

// "12345" for messages; numbers as a person would type them.
std::string show(double value);

} // namespace memsched
