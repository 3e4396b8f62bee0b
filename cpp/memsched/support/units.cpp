#include "memsched/support/units.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

namespace memsched {

void refuse_sum(const std::string& what) {
    throw std::invalid_argument(what + " add up to more than 2^53 bytes, beyond which sums with seconds would round; " +
                                "use smaller sizes or a coarser unit");
}

void refuse_size(const std::string& what, Bytes bytes) {
    throw std::invalid_argument(what + " is " + std::to_string(bytes) + "; sizes must be >= 0 bytes");
}

Seconds transfer_time(Bytes bytes, Bandwidth bandwidth, Seconds latency) {
    return std::isinf(bandwidth) ? latency : latency + static_cast<double>(bytes) / bandwidth;
}

std::string show(double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.12g", value);
    return text;
}

} // namespace memsched
