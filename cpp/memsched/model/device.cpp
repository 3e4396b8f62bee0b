#include "memsched/model/device.h"

#include <cmath>
#include <stdexcept>

namespace memsched {
namespace {

void check_bandwidth(const char* field, Bandwidth value) {
    if (std::isnan(value) || value < 0) {
        throw std::invalid_argument(std::string(field) + " is " + show(value) +
                                    "; a bandwidth must be >= 0 bytes per second (0: no link, inf: a free one)");
    }
}

} // namespace

void check_device(const Device& device) {
    if (device.memory <= 0) {
        throw std::invalid_argument("memory is " + std::to_string(device.memory) + "; a device needs memory > 0 bytes");
    }
    check_bandwidth("d2h", device.d2h);
    check_bandwidth("h2d", device.h2d);
    if (!std::isfinite(device.latency) || device.latency < 0) {
        throw std::invalid_argument("latency is " + show(device.latency) +
                                    "; a latency must be a finite number of seconds >= 0");
    }
    if (device.host_memory && *device.host_memory < 0) {
        throw std::invalid_argument("host_memory is " + std::to_string(*device.host_memory) +
                                    "; it must be >= 0 bytes, or left out for no limit");
    }
}

} // namespace memsched
