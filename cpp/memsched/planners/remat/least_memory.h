// The least memory that rotor and POFO need, exactly, and a plan for any memory from there up.
#pragma once

#include "memsched/planners/remat/remat_chain.h"
#include "memsched/support/progress.h"

#include <array>
#include <vector>

namespace memsched {

// Bytes, resident excluded, without slots or times, which do not matter for what fits. Exact for up to most_exact
// layers, whose table takes 4 layers^2 bytes. For longer chains it is the least of plans that run each segment from its
// start for each of its layers, which is seldom more; that takes layers^2 steps at worst, and no table.
class LeastMemory {
  public:
    static constexpr int most_exact = 600;
    static constexpr std::size_t most_runs = std::size_t{1} << 20; // of a plan, which are up to layers^2 / 2

    // Keeps a reference to chain. Ticks; a stop is not heard.
    LeastMemory(const RematChain& chain, const Progress& progress, int exact = most_exact);

    Bytes rotor() const { return rotor_; }
    Bytes pofo() const { return blocks_[1][0]; } // on a device with a link, if all inputs of blocks are offloaded

    // Plans that certainly fit, whose time is only improved by halving what is recomputed: for memories so close to the
    // least that sizes rounded up to slots do not fit. capacity >= rotor() or pofo(). RematSolution::time is 0.
    // Throw std::length_error beyond most_runs.
    std::vector<RematOp> rotor_sequence(Bytes capacity) const;
    RematSolution pofo_plan(Bytes capacity) const;

  private:
    // Free memory of the segments first .. j besides their input that suffices, one by one for j = first, first + 1 ..
    class Needs {
      public:
        Needs(const LeastMemory& least, int first) : least_(least), first_(first), next_(first) {}
        Bytes next();

      private:
        const LeastMemory& least_;
        int first_, next_;
        Bytes needed_ = 0, forwards_ = 0;
    };
    // The same of k .. last, for each k from first to last.
    struct Ends {
        int first;
        std::vector<Bytes> needs;
        Bytes from(int k) const { return needs[at(k - first)]; }
    };
    Ends until(int first, int last) const;
    void find_segments(int first);
    Bytes segment(int first, int last) const { return segments_[at(last)][at(first)]; }
    Bytes saving(int first, int last, Bytes rest) const;
    // `upper`: until(.., last). Of a segment that fits, the last layer before its checkpoint.
    int split(int first, int last, Bytes free, const Ends& upper) const;
    void append(int first, int last, Bytes free, const Ends& upper, std::vector<RematOp>& sequence) const;

    const RematChain& chain_;
    const Progress progress_;
    std::vector<std::vector<Bytes>> segments_; // by last and by first layer; empty if not exact
    std::vector<std::array<Bytes, 2>> blocks_; // from layer i on, its input a^{i-1} or all that was saved
    Bytes rotor_ = 0;
};

} // namespace memsched
