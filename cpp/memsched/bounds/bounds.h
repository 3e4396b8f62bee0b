// Lower bounds on the makespan, valid for every schedule of the graph that runs each op once in graph order, whether or
// not it writes tapes that no op reads.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"

#include <vector>

namespace memsched {

// A training step with everything kept, as seen by the fractional relaxation: ops 0 .. n-1 in order, and movable bytes
// of unspecified tensors. In bytes and seconds.
struct Workload {
    explicit Workload(std::size_t n = 0) : time(n), excess(n), away_most(n), wanted(n), written(n + 1) {}

    std::vector<Seconds> time;     // [n]
    std::vector<double> excess;    // [n] bytes that must be away while the op runs; <= 0: none
    std::vector<double> away_most; // [n] bytes that can be away while it runs: held, but not touched by it
    std::vector<double> wanted;    // [n] bytes that must be back when op j starts
    std::vector<double> written;   // [n + 1] bytes that may leave from before op j on (0: from the start)
};

// The least makespan of the relaxation; infinity if there is none.
Seconds fractional_bound(const Workload& work, Bandwidth d2h, Bandwidth h2d);

// Relative difference allowed between sums of up to a million times in different orders.
constexpr double bound_rounding = 1e-9;

struct Bounds {
    Seconds compute = 0;    // sum of the fastest times
    Seconds transfer = 0;   // bytes above the memory at the peak must leave and come back (Euro-Par 2020, Prop. 3)
    Seconds fractional = 0; // optimum when any fraction of a tensor may move at any time (Euro-Par 2020, Theorem 2)
};

// Data for the bounds of one graph on any device.
class GraphBounds {
  public:
    explicit GraphBounds(const Graph& graph);

    // budget: bytes, resident included. `fractional` is infinite where no such schedule exists.
    Bounds on(const Device& device, Bytes budget) const;

  private:
    Workload work_; // without `excess`, which is `needed_` minus the memory
    std::vector<Bytes> needed_;
    Bytes resident_, least_;
};

} // namespace memsched
