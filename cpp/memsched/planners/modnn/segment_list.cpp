#include "memsched/planners/modnn/segment_list.h"

#include <algorithm>
#include <cassert>

namespace memsched {

SegmentList::SegmentList(Bytes capacity) {
    if (capacity > 0) {
        segments_.push_back({0, capacity, Segment::free});
    }
}

std::optional<Bytes> SegmentList::first_fit(Bytes bytes, bool top) const {
    const auto fits = [bytes](const Segment& one) { return one.owner == Segment::free && one.bytes() >= bytes; };
    if (top) {
        const auto found = std::find_if(segments_.rbegin(), segments_.rend(), fits);
        return found == segments_.rend() ? std::nullopt : std::optional(found->high - bytes);
    }
    const auto found = std::ranges::find_if(segments_, fits);
    return found == segments_.end() ? std::nullopt : std::optional(found->low);
}

void SegmentList::place(TensorId owner, Bytes low, Bytes bytes) {
    auto at = std::upper_bound(segments_.begin(), segments_.end(), low,
                               [](Bytes address, const Segment& one) { return address < one.low; });
    assert(at != segments_.begin() && bytes > 0);
    --at;
    assert(at->owner == Segment::free && at->low <= low && low + bytes <= at->high);
    const Segment whole = *at;
    *at = {low, low + bytes, owner};
    if (low + bytes < whole.high) {
        at = segments_.insert(at + 1, {low + bytes, whole.high, Segment::free}) - 1;
    }
    if (whole.low < low) {
        segments_.insert(at, {whole.low, low, Segment::free});
    }
}

void SegmentList::remove(TensorId owner) {
    const auto at = std::ranges::find_if(segments_, [owner](const Segment& one) { return one.owner == owner; });
    if (at == segments_.end()) {
        return;
    }
    auto first = at, last = at;
    if (first != segments_.begin() && std::prev(first)->owner == Segment::free) {
        --first;
    }
    if (std::next(last) != segments_.end() && std::next(last)->owner == Segment::free) {
        ++last;
    }
    *first = {first->low, last->high, Segment::free};
    segments_.erase(first + 1, last + 1);
}

} // namespace memsched
