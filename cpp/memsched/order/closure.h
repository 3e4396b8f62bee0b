// Runs that lose nothing. The bytes held are a submodular function of the set of ops that have run: for two sets, union
// and intersection together hold no more than the two sets. So if a sequence of runs stays within a limit, and none of
// its parts that could run alone, including the empty one, ends with fewer bytes than the whole sequence, then it may
// come first in any order within the limit.
#pragma once

#include "memsched/order/state.h"

#include <functional>
#include <queue>

namespace memsched::order {

// Search effort: ops in a sequence, and how many of them may increase the bytes held.
struct Effort {
    std::size_t longest = 16;
    int growths = 1;
};
inline constexpr Effort thorough{40, 4};

// Looks for such sequences from a state on. It remembers failures until something near them changes.
class Closure {
  public:
    // Keeps references to state and pace. All runs go through here; undo either all of them, followed by forget(), or
    // none.
    explicit Closure(State& state, Pace& pace, Effort effort = {});

    void run(OpId op);
    void forget();

    // Runs all that loses nothing within the limit, and ops without an alternative, until there are no more.
    void close(Bytes limit);

  private:
    static constexpr Bytes never = -1;

    bool run_sequence(OpId first, Bytes limit);
    OpId next(Bytes limit);
    std::vector<OpId> safe_part(std::size_t from) const;
    // Calls each(op) for the ops that the last run affects.
    template <class Each> void near_last(const Each& each) const;
    void offer(OpId op);
    void sleep(OpId first);
    void wake(OpId op);
    void wake_those_near(OpId op);
    bool wake_those_that_fit();

    State& state_;
    Pace& pace_;
    Effort effort_;
    Bytes limit_ = -1;
    std::vector<OpId> nearby_;           // candidates for the next op of the current sequence
    std::vector<std::uint32_t> offered_; // by op: the attempt in which it was added to nearby_
    std::uint32_t attempt_ = 0;
    Bytes excess_ = 0; // in this attempt: excess of the cheapest op that did not fit

    std::priority_queue<OpId, std::vector<OpId>, std::greater<>> awake_; // ops to try, lowest first
    std::vector<std::uint8_t> is_awake_;
    std::vector<Bytes> fits_below_;           // by sleeping op: retry once at most this many bytes are held
    std::vector<OpId> hungry_;                // ops that sleep for lack of memory
    std::vector<std::vector<OpId>> sleepers_; // by op: ops to wake when something near it changes
};

} // namespace memsched::order
