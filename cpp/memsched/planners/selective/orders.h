// Orders of the ops to plan in.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/progress.h"

#include <vector>

namespace memsched {

// Beside the listed order: one of little peak memory, and both tidied; of whole steps the listed one with early
// updates; random ones of small graphs; none twice.
std::vector<std::vector<OpId>> other_orders(const Graph& graph, const Progress& progress);

// Moves an op that writes more than it could free right before its first reader, and one that frees more than it writes
// right after what it waits for. What holds nothing, such as the counter of an update, is moved along.
std::vector<OpId> tidied(const Graph& graph, std::vector<OpId> order, const Progress& progress);

// The same graph, with its ops in this order.
Graph in_order(const Graph& graph, const std::vector<OpId>& order);

} // namespace memsched
