// DYNPROG on a chain of bytes and seconds: exact, or in memory slots (Euro-Par 2020, section 5.3.2).
#pragma once

#include "memsched/model/chain.h"
#include "memsched/planners/offload/dynprog.h"

#include <optional>

namespace memsched {

// A chain in the paper's model: x_0 = activation[0] and x_k = saved[k-1] are offloaded whole.
class FluidSizes {
  public:
    // compute: seconds of all runs, summed as the caller sums them.
    FluidSizes(const Chain& chain, Seconds compute);

    std::size_t stages() const { return chain_.forward.size(); }
    Seconds compute() const { return compute_; }
    Bytes peak() const { return peak_; }   // with everything kept, resident excluded
    Bytes least() const { return least_; } // for which any offload set is feasible, resident excluded

    // In bytes and link bytes; without a link, or with a free one, no time passes.
    FluidChain exact(Bytes capacity, Bandwidth bandwidth) const;
    // In slots of `width` bytes; times are rounded down, the rest up. The activations are already rounded.
    FluidChain in_slots(double width, double slots, Bandwidth bandwidth, const std::vector<double>& activation) const;
    std::vector<double> activation_in_slots(double width) const;
    // Adds a slot to the activation that is closest below its size; false if none is below its size.
    bool refine(std::vector<double>& activation, double width) const;
    // x_0, x_1, .. until `excess` bytes are offloaded (GREEDY).
    std::vector<std::uint8_t> prefix(Bytes excess) const;

  private:
    FluidChain chain_; // times in seconds, sizes in bytes
    Seconds compute_;
    Bytes peak_ = 0, least_ = 0;
};

// The bandwidth of one link for both directions: of two different ones, their harmonic mean. A link that moves more in
// `compute` seconds than a double can hold counts as free.
Bandwidth fluid_bandwidth(Bandwidth d2h, Bandwidth h2d, Seconds compute);

struct FluidOptions {
    std::optional<std::int64_t> slots; // none: real sizes
    int max_rounds = 50;               // of the discretisation; then the real sizes decide
    DynprogOptions search;
};

// As DynprogSolution, but in seconds and on the real sizes.
struct FluidSolution {
    std::vector<std::uint8_t> offloaded;
    Seconds makespan = 0;
    Seconds lower_bound = 0; // 0 where a discretised solution proves none
    bool optimal = false;    // for the instance as solved
    std::size_t states = 0;
    int rounds = 0;
    std::int64_t slots = 0; // 0: real sizes
};

// Solves a feasible instance; capacity without resident. In slots it is solved repeatedly with finer activations until
// the set fits the real sizes. Gradients and overheads are rounded up, so close to the least capacity there may be no
// solution in slots; then, and after max_rounds, the real sizes are used, with a limit on the states.
FluidSolution fluid_solve(const FluidSizes& sizes, Bytes capacity, Bandwidth bandwidth, const FluidOptions& options,
                          const Progress& progress);

} // namespace memsched
