// The neighbourhood of a set of flags: flip one to three of them, mostly one that is set against one that is not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace memsched {

class FlipMove {
  public:
    // Flips entries of `flags` at positions drawn from `positions`; returns the positions flipped.
    std::span<const std::size_t> apply(std::vector<std::uint8_t>& flags, std::span<const std::int32_t> positions,
                                       std::mt19937_64& random) {
        const auto draw = [&] { return static_cast<std::size_t>(positions[random() % positions.size()]); };
        const std::uint64_t kind = random() % 8;
        count_ = kind < 2 ? 1 : kind < 7 ? 2 : 3;
        for (std::size_t f = 0; f < count_; ++f) {
            std::size_t at = draw();
            for (int tries = 0; f == 1 && tries < 16 && flags[at] != flags[flipped_[0]]; ++tries) {
                at = draw(); // the first has its new value already: equal means opposite moves
            }
            flags[at] ^= 1U;
            flipped_[f] = at;
        }
        return {flipped_.data(), count_};
    }

    void undo(std::vector<std::uint8_t>& flags) const {
        for (std::size_t f = count_; f-- > 0;) {
            flags[flipped_[f]] ^= 1U;
        }
    }

  private:
    std::array<std::size_t, 3> flipped_{};
    std::size_t count_ = 0;
};

} // namespace memsched
