// Baselines that search little: PoocH's swap-all, and SuperNeurons (Wang et al., 2018) as compared in the PoocH paper.
// The makespan is Simulator::illegal if there is no such plan.
#pragma once

#include "memsched/planners/classes/class_search.h"

namespace memsched {

// Every feature map is swapped, by the best of eager fetches, fetches one layer ahead and fetches on demand; one layer
// ahead unless `scheduled`.
ClassSolution swap_all(const Graph& graph, const Device& device, bool scheduled);

// The last feature maps are kept, as many as fit with fetches on demand; of the others, those of
// convolutions are swapped and the rest recomputed. There is no plan either if the fetches, made one convolution ahead,
// do not fit after all; with more memory this may happen again. Throws Stopped when told to stop before the result is
// known.
ClassSolution by_kind(const Graph& graph, const Device& device, const Progress& progress);

} // namespace memsched
