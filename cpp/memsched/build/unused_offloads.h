// Offloads of a finished plan that send for nothing.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

namespace memsched {

// Removes the offloads of tensors that are never prefetched, from a list without addresses. The plan stays legal and
// gets no slower: what waited waits for less. Offloads of results, which no op reads, stay: the host copy is what is
// left of them.
void drop_unused_offloads(const Graph& graph, StepList& list);

} // namespace memsched
