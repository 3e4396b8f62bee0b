// Plans to begin with, read off the cuts at one op.
#pragma once

#include "memsched/bounds/cut_bound.h"
#include "memsched/build/gap_builder.h"

#include <functional>
#include <utility>
#include <vector>

namespace memsched {

// The ops that may run again after op p has started, in the order in which a rising price of memory makes it worth it.
class RankedCuts {
  public:
    RankedCuts(const Graph& graph, OpId p, const Device& device, Bytes capacity, Seconds total, Pace& pace);

    std::size_t count() const { return ranked_.size(); }
    Bytes room() const { return capacity_ - retention_.own(); } // for what is held when p starts

    // Which gaps across p are swapped or recomputed if the first `again` of the ranked ops run again (the last ones of
    // equal price first, if `late`), and at least `away` bytes of the rest travel; all other gaps are kept.
    struct Plan {
        std::vector<MapClass> classes; // by gap
        Bytes held = 0;                // on the device or on the host
        Bytes away = 0;                // of these, on the host
    };
    Plan plan(const std::vector<Gap>& gaps, std::size_t again, Bytes away, bool late) const;

    // Asks for the makespans of such plans: of shares of what may run again and of what then exceeds the memory, on a
    // grid, and then in finer steps. Ends early if `stopped`.
    void search(const std::vector<Gap>& gaps, bool linked,
                const std::function<Seconds(const std::vector<MapClass>&)>& ask,
                const std::function<bool()>& stopped) const;

  private:
    const Graph& graph_;
    Retention retention_;
    Bytes capacity_;
    std::vector<std::pair<std::size_t, OpId>> ranked_; // by the number of the price, then by op
    std::vector<std::uint8_t> needed_, fixed_; // by tensor: held if nothing runs again, but for what p reads; read by p
};

} // namespace memsched
