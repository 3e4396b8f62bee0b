// Lower bounds on the remaining time from a state of POFO's forward phase.
#pragma once

#include "memsched/planners/remat/pofo_phase_bound.h"

#include <array>
#include <optional>
#include <vector>

namespace memsched {

// A phase takes at least its compute time and at least its link time, so at least any weighted mean of the two. For
// fixed weights, the best remaining decisions depend only on the memory held. This gives one table of layers x slots
// for each pair of weights, one weight per phase. The bounds of PofoPhaseBound are better, but more expensive.
class PofoBound {
  public:
    // Throws Stopped when told to stop, like sharpen().
    PofoBound(const SegmentTable& table, const PofoOptions& options, Workers& workers, const Progress& progress);

    static constexpr int pairs = 16;

    // Adds the tables of PofoPhaseBound for plans faster than `limit`; for options.exact with a link.
    void sharpen(Seconds limit, Workers& workers, const Progress& progress) {
        phases_.emplace(table_, options_, limit, workers, progress);
    }

    // What single precision may add to a bound by rounding, as a ratio.
    double slack() const { return chain_.layers * static_cast<double>(std::numeric_limits<float>::epsilon()); }

    // The slot of the tables for a number of bytes held.
    int slot(Bytes held) const {
        const Bytes free = std::max<Bytes>(0, options_.capacity - held);
        const Bytes slots = options_.exact ? free / table_.width() : table_.covering(free);
        return static_cast<int>(std::min<Bytes>(slots, table_.slots()));
    }

    // At least so many seconds remain from the start of layer `layer`, whose input is (not) all that was saved, by one
    // pair of weights and by the sharp tables; `slot` is that of the bytes held.
    Seconds remaining(int pair, int layer, bool all, int slot, const PofoState& state) const {
        const Seconds time = by_pair(pair, layer, all, slot, state);
        return phases_ ? std::max(time, phases_->remaining(layer, all, slot, state)) : time;
    }

    // The same with the pair of weights that gives the largest bound.
    Seconds remaining(int layer, bool all, const PofoState& state) const {
        return remaining(best_pair(layer, all, state), layer, all, slot(state.held), state);
    }
    int best_pair(int layer, bool all, const PofoState& state) const;

  private:
    struct Weights {
        double compute, leaving, arriving; // of the forward time, and seconds a byte
    };

    Seconds by_pair(int pair, int layer, bool all, int slot, const PofoState& state) const {
        const Weights& w = weights_[at(pair)];
        return w.compute * chain_.forward_sum(layer, chain_.layers) + w.leaving * state.leaving +
               w.arriving * state.arriving + static_cast<Seconds>(values_[index(pair, layer, all) + at(slot)]);
    }
    void fill(int pair);
    std::size_t index(int pair, int layer, bool all) const {
        return ((at(pair) * 2 + (all ? 1 : 0)) * at(chain_.layers + 2) + at(layer)) * stride_;
    }

    const SegmentTable& table_;
    const RematChain& chain_;
    PofoOptions options_;
    std::array<Weights, pairs> weights_;
    std::size_t stride_;
    std::vector<float> values_;
    std::optional<PofoPhaseBound> phases_;
};

} // namespace memsched
