// Contiguous memory as one list of segments, each free or occupied by one buffer.
#pragma once

#include "memsched/support/units.h"

#include <optional>
#include <vector>

namespace memsched {

struct Segment {
    static constexpr TensorId free = -1;
    static constexpr TensorId workspace = -2;

    Bytes low = 0, high = 0; // [low, high), never empty
    TensorId owner = free;   // a tensor, or one of the two above

    Bytes bytes() const { return high - low; }
};

class SegmentList {
  public:
    explicit SegmentList(Bytes capacity);

    // By address, without gaps; two free ones are never neighbours.
    const std::vector<Segment>& segments() const { return segments_; }
    // The lowest or highest address with this many free bytes.
    std::optional<Bytes> first_fit(Bytes bytes, bool top) const;
    // Takes a part of a free segment.
    void place(TensorId owner, Bytes low, Bytes bytes);
    // Frees the segment of an owner, if it has one.
    void remove(TensorId owner);

  private:
    std::vector<Segment> segments_;
};

} // namespace memsched
