// A plan of any small graph: the game of red and blue pebbles (Hong and Kung, 1981), searched state by state. Ops may
// run in any order and repeatedly, with or without their tapes; any tensor may be offloaded, fetched or dropped.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/schedule.h"

#include <cstdint>
#include <optional>

namespace memsched {

struct PebbleGame {
    std::optional<StepList> steps; // of the plan, if one was found
    bool proven = false;           // proven that there is none: every state was searched
    std::int64_t states = 0;
};

// Graphs of more ops or tensors are not searched.
constexpr std::size_t most_pebbles = 64;

// The plan with the least time if nothing overlapped, if it is found within `most_states` states; otherwise the first
// plan that a greedy search finds within as many.
PebbleGame play_pebbles(const Graph& graph, const Device& device, std::int64_t most_states, const Progress& progress);

} // namespace memsched
