// vDNN (Rhu et al., 2016), layer by layer: every layer's run waits for the offload that was issued with the layer
// before, and what is needed next is fetched one layer ahead.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/model/device.h"
#include "memsched/model/graph.h"
#include "memsched/model/schedule.h"

namespace memsched {

struct VdnnSolution {
    StepList steps;
    bool convolutions = false; // only the inputs of convolutions travel (vDNN_conv), not those of all layers (vDNN_all)
    Seconds makespan = 0;
};

// Maps that the forward reads by an op of kind conv, or by one of any kind but fc, travel; the others stay.
std::vector<MapClass> vdnn_classes(const Graph& graph, bool convolutions);

// The better of both, on a graph whose ops may have several choices: each run takes the fastest whose workspace finds
// room. budget: bytes, resident included. The makespan is Simulator::illegal where there is no such plan.
VdnnSolution vdnn_sync(const Graph& graph, const Device& device, Bytes budget);

} // namespace memsched
