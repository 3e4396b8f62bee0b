// Which address ranges are held, for lists of steps with addresses.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

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
        for (const Leaving& old : leaving_) {
            if (old.low < high && low < old.high) {
                start = std::max(start, old.done);
            }
        }
        held_.emplace(low, high);
    }

    // Frees the range that begins here, in list order; in time its bytes are released at `done`.
    void leave(Bytes low, Seconds done) {
        const auto range = held_.find(low);
        leaving_.push_back({low, range->second, done});
        held_.erase(range);
    }

    // No later step starts before this moment.
    void forget_before(Seconds issue) {
        std::erase_if(leaving_, [issue](const Leaving& old) { return old.done <= issue; });
    }

  private:
    struct Leaving {
        Bytes low, high;
        Seconds done;
    };
    std::map<Bytes, Bytes> held_; // by list order, low -> high
    std::vector<Leaving> leaving_;
};

} // namespace memsched
