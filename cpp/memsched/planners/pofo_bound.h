// Lower bounds on what is left to do from a state of POFO's forward phase.
#pragma once

#include "memsched/parallel.h"
#include "memsched/planners/pofo.h"

#include <array>
#include <vector>

namespace memsched {

// A state of the forward phase before a block: bytes that stay on the device for the blocks before it, bytes still to
// leave, and bytes that must have come back when the block has been run backward.
struct PofoState {
    Bytes held = 0;
    double leaving = 0, arriving = 0;
};

// In each phase both the compute time and the link time bound the phase from below, and so does any mean of them. For
// fixed weights of the mean the best remaining decisions follow from the memory held alone: one table of layers x
// slots for each pair of weights.
class PofoBound {
  public:
    PofoBound(const SegmentTable& table, const PofoOptions& options, Workers& workers);

    static constexpr int pairs = 16;

    // The slot of the tables for so many bytes held.
    int slot(Bytes held) const {
        const Bytes free = std::max<Bytes>(0, options_.capacity - held);
        const Bytes slots = options_.exact ? free / table_.width() : table_.covering(free);
        return static_cast<int>(std::min<Bytes>(slots, table_.slots()));
    }

    // At least so many seconds remain from the start of layer `layer`, whose input is (not) all that was saved, with
    // one pair of weights; `slot` is that of the bytes held.
    Seconds remaining(int pair, int layer, bool all, int slot, double leaving, double arriving) const {
        const Weights& w = weights_[static_cast<std::size_t>(pair)];
        return w.compute * chain_.forward_sum(layer, chain_.layers) + w.leaving * leaving + w.arriving * arriving +
               static_cast<Seconds>(values_[index(pair, layer, all) + static_cast<std::size_t>(slot)]);
    }

    // The same with the pair that says most about the state.
    Seconds remaining(int layer, bool all, const PofoState& state) const;
    int best_pair(int layer, bool all, const PofoState& state) const;

  private:
    struct Weights {
        double compute, leaving, arriving; // of the forward time, and seconds a byte
    };

    void fill(int pair);
    std::size_t index(int pair, int layer, bool all) const {
        return ((static_cast<std::size_t>(pair) * 2 + (all ? 1 : 0)) * static_cast<std::size_t>(chain_.layers + 2) +
                static_cast<std::size_t>(layer)) *
               stride_;
    }

    const SegmentTable& table_;
    const RematChain& chain_;
    PofoOptions options_;
    std::array<Weights, pairs> weights_;
    std::size_t stride_;
    std::vector<float> values_;
};

} // namespace memsched
