// Memory that is released when transfers end, in order of time.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace memsched {

// Successive queries are usually similar, so each search starts at the previous answer.
class AwaitedBytes {
  public:
    void clear() {
        all_.clear();
        head_ = passed_ = 0;
        bytes_ = passed_bytes_ = 0;
    }

    void add(Seconds done, Bytes bytes) {
        const auto later = [](Seconds time, const Awaited& one) { return time < one.done; };
        auto place = static_cast<std::size_t>(std::upper_bound(from(head_), all_.end(), done, later) - all_.begin());
        const bool front = place - head_ < all_.size() - place; // the fewer are moved
        if (front && head_ == 0) {
            const std::size_t room = all_.size();
            all_.insert(all_.begin(), room, {0, 0});
            head_ += room, passed_ += room, place += room;
        }
        const bool passed = place < passed_;
        if (front) {
            std::move(from(head_), from(place), from(head_ - 1));
            all_[place - 1] = {done, bytes};
            --head_;
            passed_ -= passed ? 0 : 1;
        } else {
            all_.insert(from(place), {done, bytes});
            passed_ += passed ? 1 : 0;
        }
        bytes_ += bytes;
        passed_bytes_ += passed ? bytes : 0;
    }

    // The time from which at most `most` (>= 0) bytes are awaited; 0 if that is the case now.
    Seconds when_left(Bytes most) {
        while (passed_ > head_ && bytes_ - passed_bytes_ + all_[passed_ - 1].bytes <= most) {
            passed_bytes_ -= all_[--passed_].bytes;
        }
        while (bytes_ - passed_bytes_ > most) {
            passed_bytes_ += all_[passed_++].bytes;
        }
        return passed_ > head_ ? all_[passed_ - 1].done : 0;
    }

    // Drops bytes that are released by then.
    void forget_until(Seconds now) {
        for (; head_ < all_.size() && all_[head_].done <= now; ++head_) {
            bytes_ -= all_[head_].bytes;
            passed_bytes_ -= head_ < passed_ ? all_[head_].bytes : 0;
        }
        passed_ = std::max(passed_, head_);
    }

  private:
    struct Awaited {
        Seconds done;
        Bytes bytes;
    };
    std::vector<Awaited>::iterator from(std::size_t place) { return all_.begin() + static_cast<std::ptrdiff_t>(place); }

    std::vector<Awaited> all_; // ascending by done, from head_ on
    std::size_t head_ = 0;
    std::size_t passed_ = 0; // end of the previous search,
    Bytes passed_bytes_ = 0; // and the bytes from head_ to there
    Bytes bytes_ = 0;        // from head_ on
};

} // namespace memsched
