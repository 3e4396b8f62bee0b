// The interruptible link model of Euro-Par 2020 (Problem 2) on a chain: an activation travels whole or not at all, may
// pause, and its memory comes and goes continuously. Times are measured in link bytes (seconds times bandwidth), so
// that the link moves one byte per unit and every quantity below has the same unit.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace memsched {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Stages 0 .. L. F_i reads x_i and writes x_{i+1}; B_i reads x_i, x_{i+1}, y_{i+1} and writes y_i. Entries are >= 0 and
// whole numbers of bytes, or of slots when the instance is discretised; times may be fractions.
struct FluidChain {
    std::vector<double> forward, backward;                   // [L + 1] link bytes
    std::vector<double> activation, gradient;                // [L + 2] x and y
    std::vector<double> forward_overhead, backward_overhead; // [L + 1] exF and exB
    double capacity = 0;                                     // M less resident
};

// Throws std::invalid_argument when the columns do not fit together or are not finite and >= 0.
void check_fluid_chain(const FluidChain& chain);

// The least capacity for which any offload set is feasible.
double fluid_min_capacity(const FluidChain& chain);

// Lower bound on every schedule, whatever fractions travel (Theorem 2), in link bytes.
double fluid_fractional_bound(const FluidChain& chain);

// A partial solution: what stages 0 .. i-1 decided, seen from between F_{i-1} and F_i.
struct FluidState {
    double held;      // K: bytes on the device once everything queued has left
    double out_queue; // dF: bytes still to leave, or minus the time that the link has been idle
    double in_queue;  // dB: bytes that must be back when B_{i-1} starts, or minus the time until the first prefetch
    double idle;      // of the compute stream so far, in link bytes
    double moved;     // bytes that travel so far
};

// The transitions of section 3 of the spec, equations (1), (6), (9) and (10) as corrected in docs/errata.md, and a
// lower bound on every completion of a state.
class FluidModel {
  public:
    explicit FluidModel(const FluidChain& chain);

    int stages() const { return static_cast<int>(chain_.forward.size()); }
    double compute() const { return compute_; }
    FluidState initial() const { return {chain_.activation[0], 0, 0, 0, 0}; }

    // Advances past stage i, keeping or offloading x_i. False when the stage has no room.
    bool advance(int i, const FluidState& state, FluidState& kept, FluidState& offloaded) const;
    double turn_idle(const FluidState& last) const;           // eG: idle between the forward and the backward phase
    double lower_bound(int i, const FluidState& state) const; // on the makespan, i stages decided; infinity: no way on

  private:
    // max over the ops of one phase nearest the turn that start less than `window` away from it
    struct Turn {
        std::vector<double> away;  // ascending: time between the op and the turn
        std::vector<double> worst; // running maximum of demand - away
        double within(double window) const;
    };

    const FluidChain& chain_;
    std::vector<double> done_; // [L + 2] forward and backward times of stages < i
    std::vector<double> need_; // [L + 1] largest demand of stages >= i beyond held, if all is kept
    std::vector<double> solo_; // [L + 1] the same beyond what was kept before i, if all is offloaded
    Turn backward_turn_, forward_turn_;
    double compute_ = 0;
};

// Makespan of one offload set (one flag a stage), in link bytes; infinity when it is infeasible.
double fluid_makespan(const FluidChain& chain, const std::vector<std::uint8_t>& offloaded);

} // namespace memsched
