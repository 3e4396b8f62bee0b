// The best way to run a segment backward while offloaded data of other segments comes back: POFO's C_A.
#pragma once

#include "memsched/planners/remat/segments.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace memsched {

// C_A(first, last, A, Delta) of POFO, section B.3: the least time of a segment at whose end `owed` slots of other data
// must have arrived over the link; `free` slots are available in addition to the segment's input, without that data.
// Values are computed on demand and cached. One object per thread.
class LinkedSegments {
  public:
    // bandwidth: of prefetches, bytes per second, > 0 (infinite: nothing is ever owed). `pause` is called now and then
    // while values are computed; after it has thrown, the object is of no more use.
    LinkedSegments(const SegmentTable& table, Bandwidth bandwidth, std::function<void()> pause = {});

    const SegmentTable& table() const { return table_; }

    // Seconds; infinity when the segment does not fit. 0 <= free <= slots.
    Seconds time(int first, int last, int free, Bytes owed);

    // A lower bound on time(), without search: the least time of any sequence that fits, and the wait of its last
    // operation, the backward of `first`, at whose end everything owed has arrived.
    Seconds least(int first, int last, int free, Bytes owed) const {
        return chain_.ideal(first, last) + static_cast<Seconds>(table_.extra(first, last, free)) +
               wait(backward_[at(first)], free, owed);
    }

    // Slots that are still owed before something of this duration, if `owed` are at its end.
    Bytes owed_before(Bytes owed, Seconds duration) const;

    // Appends the operations of an optimal plan and returns its time; the segment must fit.
    Seconds append(int first, int last, int free, Bytes owed, std::vector<RematOp>& sequence);

  private:
    struct Entry {
        std::uint64_t key = 0; // 0: empty
        Seconds time = 0;
    };
    struct Best {
        Seconds time;
        SegmentChoice begin;
    };

    Seconds saving(int first, int last, int free, Bytes owed);
    Seconds checkpoint(int first, int split, int last, int free, Bytes owed);
    Best best(int first, int last, int free, Bytes owed);
    std::uint64_t key(int first, int last, int free, Bytes owed) const;
    Entry* slot(std::uint64_t key);
    void grow();

    // Seconds until `need` slots fit where `owed` of the free ones are taken at the end.
    Seconds wait(double need, int free, Bytes owed) const {
        const double missing = need - free + static_cast<double>(owed);
        return missing > 0 ? missing / speed_ : 0.0;
    }
    // Of one layer, with the wait.
    Seconds backward(int layer, int free, Bytes owed) const {
        return chain_.backward[at(layer)] + wait(backward_[at(layer)], free, owed);
    }
    double in_slots(Bytes bytes) const { return static_cast<double>(bytes) / static_cast<double>(table_.width()); }

    const SegmentTable& table_;
    const RematChain& chain_;
    double speed_; // slots per second
    std::function<void()> pause_;
    // Slots that the forwards need, minus what arrives between each of them and the end of the last: [first][last -
    // first].
    std::vector<std::vector<double>> forwards_;
    std::vector<double> backward_; // what each backward needs
    std::vector<Entry> entries_;   // open addressing
    std::size_t used_ = 0;
    std::vector<std::pair<Seconds, int>> candidates_; // scratch, by depth of recursion
};

} // namespace memsched
