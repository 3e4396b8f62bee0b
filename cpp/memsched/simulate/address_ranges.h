// Which address ranges are held, for lists of steps with addresses.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace memsched {

class AddressRanges {
  public:
    using Range = std::pair<Bytes, Bytes>; // [low, high)

    void clear() {
        held_.clear();
        leaving_.clear();
    }

    // A held range that overlaps [low, high), if there is one.
    std::optional<Range> taken(Bytes low, Bytes high) const {
        const auto behind = held_.lower_bound(low);
        if (behind != held_.end() && behind->first < high) {
            return *behind;
        }
        if (behind != held_.begin() && std::prev(behind)->second > low) {
            return *std::prev(behind);
        }
        return std::nullopt;
    }

    // Holds a free range. Moves start to when its previous holders have actually released it (E7).
    void take(Bytes low, Bytes high, Seconds& start) {
        for (auto old = first_behind(low); old != leaving_.end() && old->first < high; ++old) {
            start = std::max(start, old->second.done);
        }
        held_.emplace(low, high);
    }

    // Frees the range that begins here, in list order; in time its bytes are released at `done`, after all that its
    // addresses were released before.
    void leave(Bytes low, Seconds done) {
        const auto range = held_.find(low);
        const Bytes high = range->second;
        held_.erase(range);
        auto old = first_behind(low);
        if (old != leaving_.end() && old->first < low) {
            const Leaving whole = old->second;
            old->second.high = low;
            old = leaving_.emplace_hint(std::next(old), low, whole);
        }
        while (old != leaving_.end() && old->first < high) {
            if (old->second.high > high) {
                leaving_.emplace_hint(std::next(old), high, old->second);
            }
            old = leaving_.erase(old);
        }
        leaving_.emplace_hint(old, low, Leaving{high, done});
    }

  private:
    struct Leaving {
        Bytes high;
        Seconds done;
    };

    // The first range of those left that ends behind an address.
    std::map<Bytes, Leaving>::iterator first_behind(Bytes address) {
        const auto next = leaving_.upper_bound(address);
        return next != leaving_.begin() && std::prev(next)->second.high > address ? std::prev(next) : next;
    }

    std::map<Bytes, Bytes> held_;      // by list order, low -> high
    std::map<Bytes, Leaving> leaving_; // by low, without overlaps: the last to leave
};

} // namespace memsched
