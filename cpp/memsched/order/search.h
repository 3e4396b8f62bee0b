// Best-first search over sets of ops that have run, by the peak of the path to them.
#pragma once

#include "memsched/order/closure.h"

#include <array>
#include <queue>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace memsched::order {

// A search that can be interrupted and resumed. Visited sets are identified by 128-bit fingerprints.
class Search {
  public:
    // lower: no order has a lower peak. upper: only orders below it matter. Keeps references to problem and pace.
    Search(const Problem& problem, Bytes lower, Bytes upper, Pace& pace, Effort effort = {});

    // Visits up to `sets` more sets. Returns whether the search is over.
    bool advance(std::size_t sets);

    Bytes lower() const { return lower_; } // at most `upper`: then there is no better order
    bool over() const { return over_; }
    const std::vector<OpId>& best() const { return best_; } // with the peak lower(); empty: there is none below upper
    std::size_t visited() const { return seen_.size(); }
    std::size_t nodes() const { return nodes_.size(); } // visited or to be visited, some 100 bytes each

  private:
    using Fingerprint = std::array<std::uint64_t, 2>;
    struct Hash {
        std::size_t operator()(const Fingerprint& f) const { return f[0]; }
    };
    struct Node {
        std::int32_t parent;
        OpId op; // runs first, followed by `runs`
        std::uint32_t first_run, end_run;
        Bytes peak;
        std::uint32_t size; // ops that have run
    };
    struct Entry {
        Bytes peak;
        std::uint32_t size;
        Bytes memory;
        std::int32_t node;
        bool operator<(const Entry& other) const { // whether it comes later in the queue
            return std::tuple(-peak, size, -memory, -node) <
                   std::tuple(-other.peak, other.size, -other.memory, -other.node);
        }
    };

    void go_to(std::int32_t node); // moves to the state of a node
    void expand(std::int32_t node);
    void push(std::int32_t parent, OpId op, Bytes peak, std::size_t size, Bytes memory);

    Pace& pace_;
    State state_;
    Closure closure_;
    Bytes lower_, upper_;
    bool over_ = false;
    std::vector<Node> nodes_;
    std::vector<OpId> runs_;         // runs of all nodes, concatenated
    std::vector<std::int32_t> path_; // nodes on the path to the state
    std::priority_queue<Entry> queue_;
    std::unordered_set<Fingerprint, Hash> seen_;
    std::vector<Fingerprint> keys_; // by op
    std::vector<OpId> best_;
};

} // namespace memsched::order
