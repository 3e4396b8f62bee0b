// Graphs as other problems see them.
#pragma once

#include "memsched/model/graph.h"

#include <optional>

namespace memsched {

// The same graph, all of whose ops run on the device; none if they do so anyway.
std::optional<Graph> without_host(const Graph& graph);

// The same ops, free to run in any order in which each reads the versions of the persistent tensors that it reads here:
// these and inputs, which stay, are weights, and further tensors, without bytes, keep reads and updates in order.
Graph with_control_edges(const Graph& graph);

} // namespace memsched
