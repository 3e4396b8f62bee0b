// SuperNeurons (Wang et al., 2018) as the PoocH paper compares it: the last feature maps stay; of the others those of
// convolutions travel and the rest is computed again.
#pragma once

#include "memsched/planners/classes/class_search.h"

namespace memsched {

// As many maps stay as fit when fetches wait until they are needed. The makespan is Simulator::illegal when none may
// stay, or when the fetches, made one convolution ahead, do not fit after all; more memory may fail again. Throws
// Stopped when told to stop before it knows.
ClassSolution superneurons(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
