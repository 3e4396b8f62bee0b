// The best way to run a segment backward if only memory limits it: rotor's table, C_A at Delta = 0.
#pragma once

#include "memsched/planners/remat/remat_chain.h"
#include "memsched/support/parallel.h"
#include "memsched/support/progress.h"

#include <limits>
#include <optional>
#include <vector>

namespace memsched {

constexpr float no_fit = std::numeric_limits<float>::infinity(); // seconds of what does not fit, in tables

// How a segment begins: forward of its first layer saving all, or a checkpoint after layer `last` (>= first) by F_ck
// and F_none, from which the rest starts.
struct SegmentChoice {
    bool all = true;
    int last = 0;
};

// For layers first .. last and `free` slots of memory in addition to the segment's input: the least time from {input,
// gradient of the last layer} to {gradient of the input}, over nested persistent rematerialisation (POFO section B, C_A
// with Delta = 0). Slots are `width` bytes; checkpoints are rounded up to slots. Takes layers^2 / 2 rows of one float
// per slot: 117 MB for 340 layers and 500 slots. Filled by tiles; the result does not depend on the number of threads.
class SegmentTable {
  public:
    // capacity: bytes, resident excluded, divided into about `slots` slots. Keeps a reference to chain. If progress
    // says stop, the table is incomplete and unusable.
    SegmentTable(const RematChain& chain, Bytes capacity, int slots, Workers& workers, const Progress& progress);

    const RematChain& chain() const { return chain_; }
    Bytes width() const { return width_; }
    int slots() const { return slots_; }
    bool complete() const { return complete_; }

    // Bytes in slots, rounded down and rounded up.
    int fitting(Bytes bytes) const {
        return bytes < 0 ? -1 : static_cast<int>(std::min<Bytes>(bytes / width_, slots_));
    }
    Bytes covering(Bytes bytes) const { return (bytes + width_ - 1) / width_; }

    // Seconds beyond ideal(first, last); infinity when the segment does not fit. free in 0 .. slots().
    float extra(int first, int last, int free) const { return row(first, last)[free]; }
    const float* row(int first, int last) const { return values_.data() + cell(first, last) * stride_; }
    // Least free slots for which the segment fits; slots() + 1: never.
    int least(int first, int last) const { return least_[cell(first, last)]; }

    // Slots that the forwards first .. last (F_ck, then F_none) need with the gradient of layer `end` held.
    Bytes forwards_need(int first, int last, int end) const;

    // The first step of an optimal plan of the segment; it must fit.
    SegmentChoice choice(int first, int last, int free) const;

    // Appends the operations of an optimal plan.
    void append(int first, int last, int free, std::vector<RematOp>& sequence) const;

  private:
    std::size_t cell(int first, int last) const { // row by row of a triangle
        const std::size_t i = at(first - 1), n = at(chain_.layers);
        return i * n - i * (i + 1) / 2 + at(last - 1);
    }
    void fill_tile(int first, int last);
    void finish(int first, int last, int middle, int rest);
    void relax_checkpoints(int first, int last, int begin, int end);

    const RematChain& chain_;
    Bytes width_;
    int slots_;
    std::size_t stride_;
    bool complete_ = true;
    std::vector<float> values_;
    std::vector<int> least_;
    std::vector<Bytes> checkpoint_;            // a^k in slots
    std::vector<std::vector<Bytes>> forwards_; // [first][last - first] largest need of the forwards, in bytes
};

// rotor: the best persistent rematerialisation of the whole chain within a number of bytes (resident excluded, at most
// the table's capacity), without blocks; none if nothing fits.
std::optional<RematSolution> rotor(const SegmentTable& table, Bytes capacity);

} // namespace memsched
