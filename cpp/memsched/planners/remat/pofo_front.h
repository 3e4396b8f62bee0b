// The undominated states of POFO's forward phase.
#pragma once

#include "memsched/planners/remat/pofo_bound.h"

#include <cstdint>
#include <vector>

namespace memsched {

// How a state was reached, and its cost: seconds of the forward and backward parts of the blocks so far.
struct PofoLabel {
    Seconds cost = 0;
    PofoState state;
    Bytes hosted = 0;         // offloaded so far
    std::int32_t parent = -1; // the state before `block`
    PofoBlock block;          // the last block
};

// Labels are kept by the layer and kind of input of their next block. Of labels with the same state the cheapest is
// kept, which is exact. A beam also drops a label if another one holds no more and costs no more, even after waiting
// for whatever more it has to send or fetch: value(Delta + x) <= value(Delta) + x / beta, up to rounding to slots.
class PofoFront {
  public:
    // beam: labels kept per layer and kind of input, 0: the best of each state (options.exact only).
    PofoFront(const SegmentTable& table, const PofoOptions& options, int beam);

    void add(int layer, bool all, const PofoLabel& label) {
        Waiting& to = waiting(layer, all);
        to.labels.push_back(label);
        if (beam_ == 0 && to.labels.size() >= to.merge_from) {
            merge(to);
        }
    }

    // Ids of the labels to expand, best first; the others are forgotten.
    std::vector<std::int32_t> take(int layer, bool all, const PofoBound& bound, Seconds limit);

    const PofoLabel& label(std::int32_t id) const { return kept_[at(id)]; }

  private:
    struct Waiting {
        std::vector<PofoLabel> labels;
        std::size_t merge_from = 1024; // labels: at least half of them have been added since the last merge
    };
    Waiting& waiting(int layer, bool all) { return waiting_[2 * at(layer) + (all ? 1 : 0)]; }
    void merge(Waiting& waiting) const;

    double width_; // bytes a slot
    Bandwidth d2h_, h2d_;
    int beam_;
    std::vector<Waiting> waiting_;
    std::vector<PofoLabel> kept_;
};

} // namespace memsched
