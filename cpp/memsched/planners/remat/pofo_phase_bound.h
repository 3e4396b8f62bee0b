// Sharp lower bounds on the remaining time from a state of POFO's forward phase, in slots.
#pragma once

#include "memsched/planners/remat/pofo.h"

#include <vector>

namespace memsched {

// A state of the forward phase before a block: bytes that stay on the device for the blocks before it, bytes still to
// leave, and bytes that must have come back when the block has been run backward.
struct PofoState {
    Bytes held = 0;
    double leaving = 0, arriving = 0;
};

// Follows one phase block by block, with all its waits, and counts only the compute time of the other. Then the
// remaining time depends only on the memory held and on the bytes in transfer in the phase that is followed. The tables
// of both phases take 8 layers slots^2 bytes.
class PofoPhaseBound {
  public:
    // For options.exact with a link. Plans that take `limit` or longer need not be bounded. Throws Stopped when told to
    // stop.
    PofoPhaseBound(const SegmentTable& table, const PofoOptions& options, Seconds limit, Workers& workers,
                   const Progress& progress);

    // At least so many seconds remain from a state before layer `layer`, whose input is (not) all that was saved;
    // `free` slots are not held. `arriving` need not be rounded to slots where the cost of the state is a bound itself.
    Seconds remaining(int layer, bool all, int free, const PofoState& state) const;

  private:
    enum class Phase { forward, backward }; // that is followed
    struct Node;
    struct Block;

    void fill(Phase phase, const Node& node);
    void fill_row(Phase phase, const Node& node, int free);
    void fill_segments(Phase phase, const Node& node, int free, Bytes room);
    void follow(Phase phase, const Node& node, int free, const Block& block);
    void relax(Phase phase, const Node& node, int free, const Block& block, bool leaves);

    double speed(Phase phase) const { return in_slots(phase == Phase::forward ? options_.d2h : options_.h2d); }
    double in_slots(double bytes) const { return bytes / static_cast<double>(table_.width()); }
    // A row has two more cells than there are free slots, since the bytes held and in transfer are both rounded up.
    static int cells(int free) { return free + 3; }
    std::size_t index(Phase phase, int layer, bool all, int free) const {
        const auto table = at(static_cast<int>(phase) * 2 + (all ? 1 : 0));
        const auto row = at(free);
        return (table * (at(chain_.layers) + 1) + at(layer)) * stride_ + row * (row + 5) / 2;
    }

    const SegmentTable& table_;
    const RematChain& chain_;
    PofoOptions options_;
    int slots_;          // of options.capacity
    std::size_t stride_; // cells of a layer
    std::vector<float> values_;
};

} // namespace memsched
