// The interruptible link model of Euro-Par 2020 (Problem 2) on a chain: an activation travels whole or not at all, may
// pause, and its memory comes and goes continuously. Times are measured in link bytes (seconds times bandwidth), so
// that the link moves one byte per unit and every quantity below has the same unit.
#pragma once

#include "memsched/support/units.h"

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

// What one stage adds to a state, by equations (1) to (8) with the corrections of docs/errata.md. M_F(i) is held plus
// what is queued, so (3) and (5) need no code. The order of the additions matters: results are compared bit by bit.
struct FluidStage {
    double x, next, forward, backward; // x_i, x_{i+1} and the times
    double forward_overhead, gradient, backward_overhead, next_gradient, capacity;

    // Keeps or offloads x_i; false when the stage has no room.
    bool advance(const FluidState& s, FluidState& kept, FluidState& offloaded) const {
        const double forward_need = s.held + forward_overhead + next - capacity;
        const double backward_need = s.held + gradient + backward_overhead + next + next_gradient - capacity;
        const double queued_out = positive(s.out_queue), queued_in = positive(s.in_queue);
        const double wait_forward = positive(forward_need + queued_out);  // (1)
        const double wait_backward = positive(backward_need + queued_in); // (6)
        const double sent = wait_forward + forward, fetched = wait_backward + backward;
        const double idle = s.idle + wait_forward + wait_backward;
        // kept: (4), (8). offloaded: (2) is its out_queue, (7) its in_queue
        kept = {s.held + next, s.out_queue - sent, s.in_queue - fetched, idle, s.moved};
        offloaded = {s.held + next - x, queued_out + x - sent, x + positive(s.in_queue - fetched), idle, s.moved + x};
        return (forward_need <= 0) & (backward_need <= 0);
    }

    static double positive(double value) { return value > 0 ? value : 0; }
};

// A lower bound on the makespan of every completion of a state before a stage.
struct FluidBound {
    double x, capacity, compute;
    double done; // forward and backward times of the stages before
    double need; // largest demand from this stage on beyond held, if all is kept
    double solo; // the same beyond what was kept before it, if all is offloaded

    // Infinity: the state has no completion.
    double of(const FluidState& s) const {
        const auto positive = FluidStage::positive;
        const double sent = 2 * s.moved - positive(s.out_queue) - positive(s.in_queue);
        const double waste = done + s.idle - sent; // the link was idle that long
        const double slack = positive(-s.out_queue) + positive(-s.in_queue);
        const double extra = positive(s.held + need - capacity);
        const double link = positive(waste - slack) + 2 * (s.moved + extra) + (extra > 0 ? slack : 0);
        const double least = link > compute + s.idle ? link : compute + s.idle;
        return s.held - x + solo > capacity ? infinity : least; // too much was kept
    }
};

// All stages of a chain, and the turn between the phases by equations (9) and (10).
class FluidModel {
  public:
    explicit FluidModel(const FluidChain& chain);

    int stages() const { return static_cast<int>(stages_.size()); }
    double compute() const { return compute_; }
    FluidState initial() const { return {chain_.activation[0], 0, 0, 0, 0}; }
    const FluidStage& stage(int i) const { return stages_[at(i)]; }
    const FluidBound& bound(int i) const { return bounds_[at(i)]; } // i stages decided, i < stages

    // Of all stages decided: eG, idle between the forward and the backward phase, and the makespan.
    double turn_idle(const FluidState& last) const;
    double makespan(const FluidState& last) const { return compute_ + last.idle + turn_idle(last); }

  private:
    // max over the ops of one phase nearest the turn that start less than `window` away from it
    struct Turn {
        std::vector<double> away;  // ascending: time between the op and the turn
        std::vector<double> worst; // running maximum of demand - away
        double within(double window) const;
    };

    const FluidChain& chain_;
    std::vector<FluidStage> stages_;
    std::vector<FluidBound> bounds_;
    Turn backward_turn_, forward_turn_;
    double compute_ = 0;
};

// Makespan of one offload set (one flag a stage), in link bytes; infinity when it is infeasible.
double fluid_makespan(const FluidChain& chain, const std::vector<std::uint8_t>& offloaded);

} // namespace memsched
