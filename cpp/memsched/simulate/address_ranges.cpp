#include "memsched/simulate/address_ranges.h"

#include <algorithm>

namespace memsched {

void AddressRanges::clear() {
    held_.clear();
    leaving_.clear();
}

std::optional<AddressRanges::Range> AddressRanges::taken(Bytes low, Bytes high) const {
    const auto behind = held_.lower_bound(low);
    if (behind != held_.end() && behind->first < high) {
        return *behind;
    }
    if (behind != held_.begin() && std::prev(behind)->second > low) {
        return *std::prev(behind);
    }
    return std::nullopt;
}

void AddressRanges::take(Bytes low, Bytes high, Seconds& start) {
    for (const Leaving& old : leaving_) {
        if (old.low < high && low < old.high) {
            start = std::max(start, old.done);
        }
    }
    held_.emplace(low, high);
}

void AddressRanges::leave(Bytes low, Seconds done) {
    const auto range = held_.find(low);
    leaving_.push_back({low, range->second, done});
    held_.erase(range);
}

void AddressRanges::forget_before(Seconds issue) {
    std::erase_if(leaving_, [issue](const Leaving& old) { return old.done <= issue; });
}

} // namespace memsched
