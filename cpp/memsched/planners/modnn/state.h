// What moDNN has written so far: the list of steps, the contents of the memory, and the clocks. Every step is timed
// when it is written, in the same way as by the simulator.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/schedule.h"
#include "memsched/planners/modnn/facts.h"

#include <functional>
#include <optional>

namespace memsched {

class ModnnState {
  public:
    // A way to make room: the tensors to evict, in order, and the delay.
    struct Scheme {
        Seconds delay = 0;
        Bytes low = 0; // address of the room
        Tensors victims;
    };

    // Keeps references. Inputs and weights are packed from address 0 in the graph's order.
    ModnnState(const ModnnFacts& facts, const Device& device, Bytes capacity);

    const ModnnLayout& layout() const { return layout_; }
    Seconds clock() const { return clock_; }       // the end of the last run
    Seconds fetched() const { return busy_[in_]; } // the end of the last prefetch, or of the last transfer of one link
    Seconds ready(TensorId t) const { return tensor(t).ready; }
    Bytes low(TensorId t) const { return tensor(t).low; }
    Seconds fetch_time(TensorId t) const;
    Seconds makespan() const;
    Tensors missing_inputs(OpId op) const; // with bytes, made before, and not on the device
    // The time from which a range is actually free.
    Seconds release_of(Bytes low, Bytes bytes) const;
    // The scheme of least delay, counted from `now`; the evicted tensors are needed again after op `behind`. Tensors
    // flagged in `protects`, and those not read since they arrived, may not be evicted. `between` runs between any two.
    std::optional<Scheme> scheme(TensorId owner, Bytes bytes, const Flags& protects, Seconds now, OpId behind,
                                 const std::function<void()>& between) const;

    void reserve(TensorId owner, Bytes low, Bytes bytes); // for an output or the workspace of the next run
    void withdraw(TensorId owner);
    void evict(const Tensors& victims); // offloads those without a host copy
    void evict_all();
    void prefetch(TensorId t, Bytes low);
    // Runs an op whose outputs and workspace (at `scratch`) are placed; then frees tensors without further readers.
    void run(OpId op, std::int32_t choice, Bytes scratch, Seconds start);
    StepList steps() const;

  private:
    struct Node { // a step, with its addresses
        Step step;
        std::vector<Bytes> at;
    };
    struct TensorState {
        Bytes low = 0;
        Seconds ready = 0;         // the device copy is complete
        Seconds touch = 0;         // the last step that touches it ends
        Seconds host = -1;         // the host copy is complete; < 0: there is none
        std::ptrdiff_t maker = -1; // the node that made the device copy
        bool exists = false;       // it was made before
    };
    struct Released {
        Bytes low, high;
        Seconds time;
    };

    const TensorState& tensor(TensorId t) const { return tensors_[at(t)]; }
    TensorState& tensor(TensorId t) { return tensors_[at(t)]; }
    void sort_by_age(Tensors& tensors) const;
    std::ptrdiff_t append(const Step& step, std::vector<Bytes> addresses = {});
    std::ptrdiff_t position(std::ptrdiff_t node) const;
    void offload(TensorId t);
    void drop(TensorId t);
    Seconds offload_time(TensorId t) const;

    const ModnnFacts& facts_;
    const Device& device_;
    std::size_t in_; // index of the prefetch link; the offload link if there is only one
    ModnnLayout layout_;
    std::vector<TensorState> tensors_;
    std::vector<Released> released_; // ranges that are free in list order, but perhaps not yet in time
    std::vector<Node> nodes_;
    std::vector<std::size_t> order_;    // of the nodes in the list
    std::ptrdiff_t last_[2] = {-1, -1}; // by link: the last transfer,
    Seconds busy_[2] = {0, 0};          // and its end
    Seconds clock_ = 0, issued_ = 0;    // the end and the start of the last run
};

} // namespace memsched
