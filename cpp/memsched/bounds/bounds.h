// Lower bounds on the makespan, valid for every schedule of the graph that runs each op once in graph order, with or
// without the tapes that no op reads.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/graph.h"

#include <vector>

namespace memsched {

// One step of training with everything kept, as the fractional relaxation sees it: ops 0 .. n-1 in order, and bytes
// that may travel, whichever they are. In bytes and seconds.
struct Workload {
    std::vector<Seconds> time;     // [n]
    std::vector<double> excess;    // [n] that must be away while the op runs; <= 0: none
    std::vector<double> away_most; // [n] that can be away while it runs: held, but not touched by it
    std::vector<double> written;   // [n + 1] bytes that may leave from before op j on (0: from the start)
    std::vector<double> wanted;    // [n] bytes that must all be back when op j starts
};

// The least makespan of the relaxation; infinity when there is none.
Seconds fractional_bound(const Workload& work, Bandwidth d2h, Bandwidth h2d);

// By how much, relative, a sum of up to a million times may differ from the same in another order.
constexpr double bound_rounding = 1e-9;

struct Bounds {
    Seconds compute = 0;    // sum of the fastest times
    Seconds transfer = 0;   // what exceeds the memory at the peak must leave and come back (Euro-Par 2020, Prop. 3)
    Seconds fractional = 0; // optimum when any fraction of a tensor may move at any time (Euro-Par 2020, Theorem 2)
};

// What the bounds of one graph share on any device.
class GraphBounds {
  public:
    explicit GraphBounds(const Graph& graph);

    // budget: bytes, resident included. `fractional` is infinite where no such schedule exists.
    Bounds on(const Device& device, Bytes budget) const;

  private:
    Workload work_; // but for `excess`, which is what `needed_` has beyond the memory
    std::vector<Bytes> needed_;
    Bytes resident_, least_;
};

inline Bounds lower_bounds(const Graph& graph, const Device& device, Bytes budget) {
    return GraphBounds(graph).on(device, budget);
}

} // namespace memsched
