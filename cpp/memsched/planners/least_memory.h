// How little memory rotor and POFO can do with, exactly, and a plan for any memory from there up.
#pragma once

#include "memsched/planners/pofo_plan.h"

#include <array>
#include <vector>

namespace memsched {

// Everything in bytes, resident excluded, without slots and without times: what fits depends on neither.
class LeastMemory {
  public:
    // Keeps a reference to chain.
    explicit LeastMemory(const RematChain& chain);

    Bytes rotor() const { return chain_.activation[0] + segment(1, chain_.layers); }
    Bytes pofo() const { return blocks_[1][0]; } // on a device with a link, on which all inputs of blocks travel

    // Plans that fit for certain, with no claim on their time beyond halving what is run again: for memories so close
    // to the least that sizes rounded up to slots fit no more. capacity >= rotor() or pofo(). PofoPlan::time is 0.
    std::vector<RematOp> rotor_sequence(Bytes capacity) const;
    PofoPlan pofo_plan(Bytes capacity) const;

  private:
    // Least free memory of a segment besides its input.
    Bytes segment(int first, int last) const { return segments_[RematChain::at(first)][RematChain::at(last - first)]; }
    Bytes saving(int first, int last) const;
    void append(int first, int last, Bytes free, std::vector<RematOp>& sequence) const;

    const RematChain& chain_;
    std::vector<std::vector<Bytes>> segments_;
    std::vector<std::array<Bytes, 2>> blocks_; // from layer i on, its input a^{i-1} or all that was saved
};

} // namespace memsched
