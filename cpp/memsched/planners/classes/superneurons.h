// SuperNeurons (Wang et al., 2018) as compared in the PoocH paper: the last feature maps are kept; of the others, those
// of convolutions are swapped and the rest recomputed.
#pragma once

#include "memsched/planners/classes/class_search.h"

namespace memsched {

// As many maps are kept as fit with fetches on demand. The makespan is Simulator::illegal if none may be kept, or if
// the fetches, made one convolution ahead, do not fit after all; with more memory this may fail again. Throws Stopped
// when told to stop before the result is known.
ClassSolution superneurons(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
