// Small random problems for the tests. Same seed, same problems: nothing here depends on the standard library's
// distributions.
#pragma once

#include "memsched/build/set_builder.h"
#include "memsched/model/chain.h"
#include "memsched/model/device.h"
#include "memsched/model/to_graph.h"
#include "memsched/planners/offload/fluid_chain.h"

#include <cstdint>
#include <random>
#include <vector>

namespace memsched::testing {

class Dice {
  public:
    explicit Dice(std::uint64_t seed) : engine_(seed) {}

    int roll(int low, int high) { // both included
        return low + static_cast<int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
    }

    template <class T> std::vector<T> column(int length, int low, int high) {
        std::vector<T> values;
        for (int k = 0; k < length; ++k) {
            values.push_back(static_cast<T>(roll(low, high)));
        }
        return values;
    }

    // One flag an entry, each with one chance in two.
    std::vector<std::uint8_t> flags(std::size_t length) { return column<std::uint8_t>(static_cast<int>(length), 0, 1); }

  private:
    std::mt19937_64 engine_;
};

// A chain with a tape on some stages and scratch on some ops.
inline Chain random_chain(Dice& dice, int stages) {
    ChainColumns c;
    c.forward_time = dice.column<Seconds>(stages, 0, 5);
    c.backward_time = dice.column<Seconds>(stages, 0, 9);
    c.activation = dice.column<Bytes>(stages + 1, 0, 8);
    c.gradient = dice.column<Bytes>(stages + 1, 0, 4);
    c.forward_overhead = dice.column<Bytes>(stages, 0, 2);
    c.backward_overhead = dice.column<Bytes>(stages, 0, 2);
    c.resident = dice.roll(0, 3);
    for (int k = 1; k <= stages; ++k) {
        const Bytes tape = dice.roll(0, 1) == 0 ? 0 : dice.roll(1, 6);
        c.saved.push_back(c.activation[static_cast<std::size_t>(k)] + tape);
    }
    ChainGiven given;
    given.saved = given.forward_overhead = given.backward_overhead = true;
    return Chain(std::move(c), given);
}

inline FluidChain random_fluid_chain(Dice& dice, int stages) {
    FluidChain c;
    c.forward = dice.column<double>(stages, 0, 6);
    c.backward = dice.column<double>(stages, 0, 9);
    c.activation = dice.column<double>(stages + 1, 0, 9);
    c.gradient = dice.column<double>(stages + 1, 0, 5);
    c.forward_overhead = dice.column<double>(stages, 0, 3);
    c.backward_overhead = dice.column<double>(stages, 0, 3);
    c.capacity = fluid_min_capacity(c) + dice.roll(0, 6 * stages);
    return c;
}

inline constexpr FetchRule::Kind all_kinds[] = {FetchRule::Kind::demand, FetchRule::Kind::ops, FetchRule::Kind::layers,
                                                FetchRule::Kind::convolutions, FetchRule::Kind::eager};

inline Device device_of(Bytes memory, Bandwidth bandwidth, bool duplex = false) {
    Device device;
    device.memory = memory;
    device.d2h = device.h2d = bandwidth;
    device.duplex = duplex;
    return device;
}

// All flag vectors of `length` entries, by number.
inline std::vector<std::uint8_t> flags_of(std::uint32_t number, std::size_t length) {
    std::vector<std::uint8_t> flags(length);
    for (std::size_t i = 0; i < length; ++i) {
        flags[i] = (number >> i) & 1U;
    }
    return flags;
}

} // namespace memsched::testing
