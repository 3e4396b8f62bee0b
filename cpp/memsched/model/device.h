// Device: the memory of the accelerator and the link between it and the host.
#pragma once

#include "memsched/support/units.h"

#include <optional>
#include <string>

namespace memsched {

struct Device {
    Bytes memory = 0;
    Bandwidth d2h = 0;                // device to host, bytes per second; 0: no link, infinity: free
    Bandwidth h2d = 0;                // host to device
    bool duplex = false;              // false: both directions share one link, one transfer at a time
    Seconds latency = 0;              // added to every transfer
    std::optional<Bytes> host_memory; // none: unlimited
    std::string name;

    bool operator==(const Device&) const = default;
};

// Throws std::invalid_argument naming the field and its value: memory > 0, bandwidths >= 0 and not NaN, latency finite
// and >= 0, host_memory >= 0.
void check_device(const Device& device);

} // namespace memsched
