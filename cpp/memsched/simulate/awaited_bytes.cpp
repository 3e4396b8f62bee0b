#include "memsched/simulate/awaited_bytes.h"

#include <algorithm>
#include <utility>

namespace memsched {

void AwaitedBytes::clear() {
    all_.clear();
    head_ = passed_ = 0;
    bytes_ = passed_bytes_ = 0;
}

void AwaitedBytes::add(Seconds done, Bytes bytes) {
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

Seconds AwaitedBytes::when_left(Bytes most) {
    while (passed_ > head_ && bytes_ - passed_bytes_ + all_[passed_ - 1].bytes <= most) {
        passed_bytes_ -= all_[--passed_].bytes;
    }
    while (bytes_ - passed_bytes_ > most) {
        passed_bytes_ += all_[passed_++].bytes;
    }
    return passed_ > head_ ? all_[passed_ - 1].done : 0;
}

void AwaitedBytes::forget_until(Seconds now) {
    for (; head_ < all_.size() && all_[head_].done <= now; ++head_) {
        const Bytes bytes = all_[head_].bytes;
        bytes_ -= bytes;
        passed_bytes_ -= head_ < passed_ ? bytes : 0;
    }
    passed_ = std::max(passed_, head_);
}

} // namespace memsched
