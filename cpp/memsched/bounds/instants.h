// For each op of a graph, the tensors beside it: written before it and read after it, in every schedule.
#pragma once

#include "memsched/model/graph.h"
#include "memsched/support/id_lists.h"

#include <array>
#include <cstdint>
#include <vector>

namespace memsched {

// Handles 64 ops at a time, one bit each, in scans of the graph; so m ops take m / 64 scans.
class Instants {
  public:
    struct Runs { // of an op
        Seconds time = 0;
        double bytes = 0; // bytes that it writes of those beside
    };
    struct Change {
        std::size_t piece = 0; // of runs()
        bool there = false;
    };
    struct Instant {
        std::size_t op = 0;
        double beside = 0;             // bytes
        Seconds before = 0, after = 0; // times of the ops that must run before it; its own and of those after it
        std::size_t changes = 0;       // how many of changes() apply by then
    };

    explicit Instants(const Graph& graph);

    // Finds the instants of ops (ascending). Stops after `most_steps`; returns the number of ops done, at least 64.
    std::size_t scan(const std::vector<std::size_t>& ops, std::int64_t most_steps, Pace& pace);

    Seconds total() const { return total_; }
    const std::vector<Instant>& found() const { return found_; }
    const std::vector<Runs>& runs() const { return runs_; }         // all that are present at some instant
    const std::vector<Change>& changes() const { return changes_; } // from instant to instant: what may be recomputed

  private:
    using Word = std::uint64_t; // one bit per instant of a group
    static constexpr std::size_t most = 64, none = static_cast<std::size_t>(-1);

    std::int64_t group(const std::vector<std::size_t>& ops, std::size_t first, std::size_t count);
    void relate(std::size_t first, std::size_t last);
    std::int64_t sum_times(Instant* found, std::size_t count) const;
    std::int64_t find_flips(std::size_t count);
    std::int64_t flip(const std::vector<std::uint32_t>& tensors);
    std::size_t piece_of(std::size_t op, double bytes);

    const Graph& graph_;
    std::vector<Seconds> time_; // by op
    Seconds total_ = 0;
    IdLists writers_, readers_; // by op: of what it reads; by tensor

    std::vector<Word> before_, after_, self_;            // by op: the instants at which this holds
    std::vector<std::uint8_t> beside_;                   // by tensor, now
    std::array<std::vector<std::uint32_t>, most> flips_; // by instant: tensors that come or go
    double bytes_ = 0;                                   // of all tensors beside, now
    std::vector<double> again_;                          // by op: what it brings back, now
    std::vector<std::size_t> piece_;                     // by op: its current piece
    std::vector<std::vector<std::size_t>> pieces_;       // by op: all its pieces
    std::vector<std::size_t> touched_;
    std::vector<Instant> found_;
    std::vector<Runs> runs_;
    std::vector<Change> changes_;
};

} // namespace memsched
