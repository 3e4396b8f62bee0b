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

// Adjacent segments that are free or may be cleared: segments[first] .. segments[last].
struct Window {
    std::size_t first = 0, last = 0;
};

// The shortest window with enough bytes from each start, if there is one, in the order of the starts; `may_go` says
// which owners may leave.
template <class MayGo> std::vector<Window> windows(const SegmentList& list, Bytes bytes, const MayGo& may_go) {
    const std::vector<Segment>& segments = list.segments();
    std::vector<Window> found;
    for (std::size_t first = 0; first < segments.size(); ++first) {
        for (std::size_t last = first; last < segments.size(); ++last) {
            if (segments[last].owner != Segment::free && !may_go(segments[last].owner)) {
                break;
            }
            if (segments[last].high - segments[first].low >= bytes) {
                found.push_back({first, last});
                break;
            }
        }
    }
    return found;
}

} // namespace memsched
