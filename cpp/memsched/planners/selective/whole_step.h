// Of graphs with persistent tensors: how they are closed for the builder, what may be on the host at the border, and
// what may run there.
#pragma once

#include "memsched/build/gap_builder.h"

#include <optional>
#include <vector>

namespace memsched {

// The graph with a last op that reads all inputs and weights, which must be on the device at the border. None if the
// graph has no persistent tensors, or nothing but these from the start.
std::optional<Graph> closed(const Graph& graph);

// The gaps across the border, by index, those that last longest first.
std::vector<std::size_t> longest_across_border(const Graph& graph, const std::vector<Gap>& gaps);

// The ops that may run on the host, those first that may end last: the time from the op to the first op that reads what
// it updates. Those that wait for one another, such as an update for its counter of steps, go together.
std::vector<std::vector<OpId>> latest_on_host(const Graph& graph);

// By op, whether it may run on the host and does not fit into `capacity` bytes of the device; empty: none.
std::vector<std::uint8_t> too_large(const Graph& graph, Bytes capacity);

} // namespace memsched
