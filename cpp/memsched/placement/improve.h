// Large neighbourhood search: lowers a placement of one part by placing a few buffers anew, exactly, among the others.
#pragma once

#include "memsched/placement/greedy.h"

#include <cstdint>
#include <random>
#include <vector>

namespace memsched::placement {

struct Neighbourhood {
    std::vector<std::uint8_t> moves; // by buffer of the part
    SectionId first = 0, last = 0;   // the sections in which they are alive
};

// Buffers around a section in the lifetime of a too high one, the nearest in time first.
Neighbourhood around(const Part& part, BufferId high, std::size_t most, std::mt19937_64& random);

// Up to `tries` attempts to bring `offsets` down to `goal`; never raises the height. Each takes one buffer that is too
// high and others around it in time, and lets the exact search place them below the aim. True when told to stop.
bool improve_placement(const Part& part, Bytes goal, std::int64_t tries, std::mt19937_64& random, Offsets& offsets,
                       const Progress& progress);

} // namespace memsched::placement
