// Memory that is released when transfers end, in order of time.
#pragma once

#include "memsched/support/units.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace memsched {

// It stands in blocks whose sums are known, so that neither a new entry nor a query looks at all others. Successive
// queries are usually similar: each search starts at the previous answer.
class AwaitedBytes {
  public:
    // A block is cut in two when it has so many entries.
    explicit AwaitedBytes(std::size_t most_in_block = 512) : most_in_block_(most_in_block), blocks_(1) {}

    void clear() {
        blocks_.resize(1);
        blocks_[0] = {std::move(blocks_[0].all), 0}; // with its memory
        blocks_[0].all.clear();
        head_ = 0;
        bytes_ = 0;
        start_over();
    }

    void add(Seconds done, Bytes bytes) {
        const auto later = [](Seconds time, const Awaited& one) { return time < one.done; };
        const auto begins_later = [](Seconds time, const Block& one) { return time < one.all.front().done; };
        const auto after = std::upper_bound(blocks_.begin() + 1, blocks_.end(), done, begins_later);
        const auto b = static_cast<std::size_t>(after - blocks_.begin()) - 1;
        Block& block = blocks_[b];
        const auto first = block.all.begin() + static_cast<std::ptrdiff_t>(b == 0 ? head_ : 0);
        const auto spot = std::upper_bound(first, block.all.end(), done, later);
        const auto place = static_cast<std::size_t>(spot - block.all.begin());
        block.all.insert(spot, {done, bytes});
        block.bytes += bytes;
        bytes_ += bytes;
        if (b < block_) {
            before_ += bytes;
        } else if (b == block_ && place < place_) {
            ++place_;
            within_ += bytes;
        }
        if (block.all.size() >= most_in_block_) {
            cut(b);
        }
    }

    // The time from which at most `most` (>= 0) bytes are awaited; 0 if that is the case now.
    Seconds when_left(Bytes most) {
        const Bytes back = bytes_ - most; // must be back
        if (back <= 0) {
            return 0;
        }
        for (; before_ >= back; place_ = blocks_[block_].all.size(), within_ = blocks_[block_].bytes) {
            before_ -= blocks_[--block_].bytes;
        }
        for (; before_ + blocks_[block_].bytes < back; place_ = 0, within_ = 0) {
            before_ += blocks_[block_++].bytes;
        }
        const std::vector<Awaited>& all = blocks_[block_].all;
        while (within_ > 0 && before_ + within_ - all[place_ - 1].bytes >= back) {
            within_ -= all[--place_].bytes;
        }
        while (before_ + within_ < back) {
            within_ += all[place_++].bytes;
        }
        return all[place_ - 1].done;
    }

    // Drops bytes that are released by then.
    void forget_until(Seconds now) {
        while (head_ < blocks_[0].all.size() && blocks_[0].all[head_].done <= now) {
            drop_head();
        }
    }

  private:
    struct Awaited {
        Seconds done;
        Bytes bytes;
    };
    struct Block {
        std::vector<Awaited> all; // ascending by done; of the first one from head_ on
        Bytes bytes = 0;
    };

    void start_over() {
        block_ = 0;
        place_ = head_;
        before_ = within_ = 0;
    }

    void drop_head() {
        const Bytes bytes = blocks_[0].all[head_++].bytes;
        blocks_[0].bytes -= bytes;
        bytes_ -= bytes;
        if (block_ > 0) {
            before_ -= bytes;
        } else {
            within_ -= place_ < head_ ? 0 : bytes;
            place_ = std::max(place_, head_);
        }
        if (head_ < blocks_[0].all.size()) {
            return;
        }
        head_ = 0;
        if (blocks_.size() == 1) {
            blocks_[0].all.clear();
            start_over();
        } else {
            blocks_.erase(blocks_.begin());
            block_ == 0 ? start_over() : void(--block_);
        }
    }

    void cut(std::size_t b) {
        Block& whole = blocks_[b];
        if (b == 0) {
            whole.all.erase(whole.all.begin(), whole.all.begin() + static_cast<std::ptrdiff_t>(head_));
            head_ = 0;
        }
        start_over();
        if (whole.all.size() < 2) {
            return;
        }
        const auto middle = whole.all.begin() + static_cast<std::ptrdiff_t>(whole.all.size() / 2);
        Block rest{{middle, whole.all.end()}, 0};
        whole.all.erase(middle, whole.all.end());
        for (const Awaited& one : rest.all) {
            rest.bytes += one.bytes;
        }
        whole.bytes -= rest.bytes;
        blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(b) + 1, std::move(rest));
    }

    std::size_t most_in_block_;
    std::vector<Block> blocks_; // none but the first may be empty
    std::size_t head_ = 0;
    Bytes bytes_ = 0;                   // of all
    std::size_t block_ = 0, place_ = 0; // where the previous search ended
    Bytes before_ = 0, within_ = 0;     // the bytes of the blocks before, and of this one up to there
};

} // namespace memsched
