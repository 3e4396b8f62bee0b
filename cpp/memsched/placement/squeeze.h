// Squeaky wheel optimisation of one part: repeated first fit, where buffers that came out too high go earlier.
#pragma once

#include "memsched/placement/greedy.h"

#include <cstdint>
#include <random>

namespace memsched::placement {

// The weights learned for the buffers of a part are kept between runs.
class Squeeze {
  public:
    explicit Squeeze(const Part& part);

    // Up to `passes` passes to bring `offsets` down to `goal`; never raises the height. Small parts are placed as a
    // whole, others around their highest buffer. True when told to stop.
    bool run(Bytes goal, std::int64_t passes, std::mt19937_64& random, Offsets& offsets, const Progress& progress);

  private:
    struct Place {
        Bytes offset, top;
        SectionId first, last;
        std::int32_t turn; // when it was placed; -1: before all
    };

    void gather(BufferId high, const Offsets& offsets, std::mt19937_64& random);
    Bytes fit();

    const Part& part_;
    std::vector<std::int64_t> weights_; // by buffer: the heaviest goes first
    std::size_t most_;                  // buffers of a neighbourhood
    std::vector<BufferId> order_;       // the moving buffers
    std::vector<BufferId> fitted_;      // in the order of the last pass
    std::vector<Place> places_;         // by offset
    Offsets offsets_;                   // of the last pass
};

} // namespace memsched::placement
