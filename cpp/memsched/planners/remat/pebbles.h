// A plan of any small graph, whatever it takes: the game of red and blue pebbles (Hong and Kung, 1981), searched state
// by state. Ops run in any order, again, with or without their tapes; any tensor may leave, come back or be dropped.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"
#include "memsched/support/progress.h"

#include <cstdint>
#include <optional>

namespace memsched {

struct PebbleGame {
    std::optional<StepList> steps; // of the plan, if one was found
    bool proven = false;           // there is none: every state was seen
    std::int64_t states = 0;
};

// Graphs of more ops or tensors are not searched.
constexpr std::size_t most_pebbles = 64;

// The plan of the least time, if nothing overlapped, among those that need at most `most_states` states to be found;
// where there is none, the first that a greedy search meets in as many. budget: bytes, resident included.
PebbleGame play_pebbles(const Graph& graph, const Device& device, Bytes budget, std::int64_t most_states,
                        const Progress& progress);

} // namespace memsched
