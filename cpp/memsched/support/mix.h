// Pseudorandom numbers: from any numbers by splitmix64, and from a generator.
#pragma once

#include <cstdint>
#include <random>

namespace memsched {

inline std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// A number in [0, 1).
inline double share(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

} // namespace memsched
