// Large neighbourhood search: lowers a placement of one part by placing a few buffers anew, exactly, among the others.
#pragma once

#include "memsched/planners/placement_greedy.h"
#include "memsched/progress.h"

#include <cstdint>
#include <random>

namespace memsched {

// Up to so many tries to bring `offsets` down to `goal`; never raises the height. Each takes one buffer that is too
// high with others around it in time, and lets the exact search place them below the aim. True when told to stop.
bool improve_placement(const Part& part, Bytes goal, std::int64_t tries, std::mt19937_64& random, Offsets& offsets,
                       const Progress& progress);

} // namespace memsched
