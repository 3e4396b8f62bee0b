// vDNN (Rhu et al., 2016), layer by layer: every layer's run waits for the offload that was issued with the layer
// before, and what is needed next is fetched one layer ahead.
#pragma once

#include "memsched/device.h"
#include "memsched/graph.h"
#include "memsched/schedule.h"

namespace memsched {

struct VdnnSolution {
    StepList steps;
    bool convolutions = false; // only the inputs of convolutions travel (vDNN_conv), not those of all layers (vDNN_all)
    Seconds makespan = 0;
};

// The better of both, on a graph whose ops may have several choices: each run takes the fastest whose workspace finds
// room. budget: bytes, resident included. Throws InfeasibleError.
VdnnSolution vdnn_sync(const Graph& graph, const Device& device, Bytes budget);

} // namespace memsched
