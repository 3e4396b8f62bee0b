// The least capacity that separates two nodes of a directed graph: Dinic's algorithm.
#pragma once

#include "memsched/support/progress.h"
#include "memsched/support/units.h"

#include <limits>
#include <utility>
#include <vector>

namespace memsched {

class MinCut {
  public:
    static constexpr Bytes unlimited = std::numeric_limits<Bytes>::max() / 4;

    explicit MinCut(std::size_t nodes) : first_(nodes, -1) {}

    void add_edge(std::int32_t from, std::int32_t to, Bytes capacity);
    // The capacity of the minimum cut, or `enough` once it is clear that it is no less. The flow is kept: another call,
    // also with other ends, returns the additional flow.
    Bytes solve(std::int32_t source, std::int32_t sink, Bytes enough, Pace& pace);
    // Starts anew with other capacities, one per edge in the order of add_edge.
    void reset(const std::vector<Bytes>& capacities);
    // keep() commits the flow; take_back() undoes the flow since then.
    void keep() { pushed_.clear(); }
    void take_back();
    // After a `solve` that returned less than enough: the nodes on the sink's side of every minimum cut (the smallest
    // such side), and those on the source's side of every one.
    std::vector<std::uint8_t> reaches(std::int32_t sink) const { return found_from(sink, 1); }
    std::vector<std::uint8_t> reached_from(std::int32_t source) const { return found_from(source, 0); }
    Bytes flow(std::size_t edge) const { return edges_[2 * edge + 1].left; } // of an edge, if it has capacity one way
    std::size_t bytes() const;                                               // bytes that this object uses

  private:
    struct Edge {
        std::int32_t to, next;
        Bytes left;
    };

    bool label(std::int32_t source, std::int32_t sink, Pace& pace);
    Bytes push(std::int32_t source, std::int32_t sink, Pace& pace);
    std::vector<std::uint8_t> found_from(std::int32_t start, std::int32_t reverse) const;

    std::vector<Edge> edges_; // each followed by its reverse
    std::vector<std::int32_t> first_, level_, current_;
    std::vector<std::int32_t> queue_, way_;              // of one search
    std::vector<std::pair<std::int32_t, Bytes>> pushed_; // edges, and their flow since keep()
};

} // namespace memsched
