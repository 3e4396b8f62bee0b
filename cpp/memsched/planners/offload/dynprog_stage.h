// One stage of DYNPROG for all states at once, in columns, so that it runs on vector units.
#pragma once

#include "memsched/planners/offload/fluid_chain.h"

#include <cstdint>
#include <vector>

namespace memsched {

// States, one per row.
struct FluidStates {
    std::vector<double> held, out_queue, in_queue, idle, moved;

    std::size_t size() const { return held.size(); }
    void resize(std::size_t count);
    void assign(const FluidState& state); // one alone
    FluidState operator[](std::size_t k) const { return {held[k], out_queue[k], in_queue[k], idle[k], moved[k]}; }
};

// The children of the states: for state p, child 2 p keeps x_i, and 2 p + 1 offloads it.
struct FluidChildren {
    FluidStates of[2];
    std::vector<double> bound[2]; // on the makespan of every completion; infinity where the stage has no room

    FluidState operator[](std::uint32_t child) const { return of[child & 1U][child >> 1U]; }
    void gather(const std::vector<std::uint32_t>& chosen, FluidStates& states) const;
};

// The children of all states; returns how many have room. `next` is of the stage that follows, or null: then the bounds
// of those with room are 0.
std::size_t advance_all(const FluidStage& stage, const FluidBound* next, const FluidStates& states,
                        FluidChildren& children);

// Decides which kept states dominate a new one: the new one holds no less and is idle no less, even if the kept state
// first waits until its queues are as short.
class DominanceFilter {
  public:
    void restart(std::size_t most);

    // Takes states in ascending order of held bytes. Adds to `kept` those that none before them dominates.
    void run(const std::uint32_t* first, std::size_t count, const FluidChildren& children,
             std::vector<std::uint32_t>& kept);

  private:
    std::vector<double> out_, in_, idle_; // of kept states, followed by rows with infinite idle time
    std::size_t size_ = 0;
};

} // namespace memsched
