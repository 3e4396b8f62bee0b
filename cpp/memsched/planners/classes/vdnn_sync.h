// vDNN (Rhu et al., 2016), layer by layer: each run waits for the offload issued with the previous layer, and fetches
// are issued one layer ahead.
#pragma once

#include "memsched/build/class_builder.h"
#include "memsched/model/device.h"

namespace memsched {

struct VdnnSolution {
    StepList steps;
    bool convolutions = false; // offload only inputs of convolutions (vDNN_conv), not of all layers (vDNN_all)
    Seconds makespan = 0;
};

// Offloads maps that the forward reads in an op of kind conv, or of any kind but fc; the others stay.
std::vector<MapClass> vdnn_classes(const Graph& graph, const Lifetimes& lifetimes, bool convolutions);

// The better of the two, on a graph whose ops may have several choices: each run uses the fastest one whose workspace
// finds room. stays: all maps are kept. The makespan is Simulator::illegal if there
// is no such plan.
VdnnSolution vdnn_sync(const Graph& graph, const Device& device, bool stays = false);

} // namespace memsched
