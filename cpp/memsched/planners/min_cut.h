// The least capacity that separates two nodes of a directed graph: Dinic's algorithm.
#pragma once

#include "memsched/units.h"

#include <limits>
#include <vector>

namespace memsched {

class MinCut {
  public:
    static constexpr Bytes unlimited = std::numeric_limits<Bytes>::max() / 4;

    explicit MinCut(std::size_t nodes) : first_(nodes, -1) {}

    void add_edge(std::int32_t from, std::int32_t to, Bytes capacity);
    // The capacity of the least cut, or `enough` once it is clear that it is no less. Ask once.
    Bytes solve(std::int32_t source, std::int32_t sink, Bytes enough);
    // After `solve` by a cut less than enough: the nodes on the sink's side of every least cut, the smallest such side.
    std::vector<std::uint8_t> reaches(std::int32_t sink) const;

  private:
    struct Edge {
        std::int32_t to, next;
        Bytes left;
    };

    bool label(std::int32_t source, std::int32_t sink);
    Bytes push(std::int32_t source, std::int32_t sink);

    std::vector<Edge> edges_; // each followed by its reverse
    std::vector<std::int32_t> first_, level_, current_;
};

} // namespace memsched
