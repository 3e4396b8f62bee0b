// Orders of the ops to plan in.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/progress.h"

#include <vector>

namespace memsched {

// Beside the listed order: one with early updates, if there are any; one of little peak memory, and this and the listed
// one tidied; random ones of small graphs; none twice.
std::vector<std::vector<OpId>> other_orders(const Graph& graph, const Progress& progress);

// Moves an op that writes more than it could free right before its first reader, and one that frees more than it writes
// right after what it waits for.
std::vector<OpId> tidied(const Graph& graph, std::vector<OpId> order, const Progress& progress);

// The same graph, with its ops in this order.
Graph in_order(const Graph& graph, const std::vector<OpId>& order);

} // namespace memsched
