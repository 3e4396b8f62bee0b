// How little memory rotor and POFO can do with, exactly, and a plan for any memory from there up.
#pragma once

#include "memsched/planners/pofo_plan.h"
#include "memsched/progress.h"

#include <array>
#include <vector>

namespace memsched {

// Everything in bytes, resident excluded, without slots and without times: what fits depends on neither. Exact for up
// to most_exact layers, whose table takes 4 layers^2 bytes. For longer chains it is the least of plans that run each
// segment from its start again for each of its layers, which is seldom more: that takes layers^2 steps and no table.
class LeastMemory {
  public:
    static constexpr int most_exact = 600;

    // Keeps a reference to chain. Ticks; a stop is not heard.
    LeastMemory(const RematChain& chain, const Progress& progress, int exact = most_exact);

    Bytes rotor() const { return rotor_; }
    Bytes pofo() const { return blocks_[1][0]; } // on a device with a link, on which all inputs of blocks travel

    // Plans that fit for certain, with no claim on their time beyond halving what is run again: for memories so close
    // to the least that sizes rounded up to slots fit no more. capacity >= rotor() or pofo(). PofoPlan::time is 0.
    std::vector<RematOp> rotor_sequence(Bytes capacity) const;
    PofoPlan pofo_plan(Bytes capacity) const;

  private:
    Bytes own(int layer) const; // of the segment of one layer
    // Free memory of segments besides their input that suffices: of first .. j for each j from first to last, and of
    // k .. last for each k from first to last.
    std::vector<Bytes> from(int first, int last) const;
    std::vector<Bytes> until(int first, int last) const;
    std::vector<Bytes> exactly(int first) const;
    Bytes segment(int first, int last) const { return segments_[RematChain::at(first)][RematChain::at(last - first)]; }
    Bytes saving(int first, int last, Bytes rest) const;
    int split(int first, int last,
              Bytes free) const; // last layer before the checkpoint of a segment that fits, 0: none
    void append(int first, int last, Bytes free, std::vector<RematOp>& sequence) const;

    const RematChain& chain_;
    std::vector<std::vector<Bytes>> segments_; // empty where they are not exact
    std::vector<std::array<Bytes, 2>> blocks_; // from layer i on, its input a^{i-1} or all that was saved
    Bytes rotor_ = 0;
};

} // namespace memsched
