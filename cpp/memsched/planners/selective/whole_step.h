// Of graphs with persistent tensors: how they are closed for the builder, and what may be on the host at the border.
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

} // namespace memsched
