// Memory that is released when transfers end, in order of time.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <utility>
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
        bytes_ += bytes;
        all_.push_back({done, bytes});
        std::size_t place = all_.size() - 1;
        for (; place > head_ && all_[place - 1].done > done; --place) {
            std::swap(all_[place - 1], all_[place]);
        }
        if (place < passed_) {
            ++passed_;
            passed_bytes_ += bytes;
        }
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
    std::vector<Awaited> all_; // ascending by done, from head_ on
    std::size_t head_ = 0;
    std::size_t passed_ = 0; // end of the previous search,
    Bytes passed_bytes_ = 0; // and the bytes from head_ to there
    Bytes bytes_ = 0;        // from head_ on
};

} // namespace memsched
