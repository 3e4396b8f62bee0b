// Runs that lose nothing. The bytes held are a submodular function of the set of ops that have run: of two sets, the
// union and the intersection together hold no more than the two. So if a sequence of runs stays within a limit, and
// none of its parts that could run alone, nor none of it, ends with fewer bytes than all of it, then it may come first
// in any order that keeps to the limit.
#pragma once

#include "memsched/order/state.h"
#include "memsched/support/progress.h"

#include <functional>
#include <queue>

namespace memsched::order {

// How far to look: ops of a sequence, and how many of them may leave more bytes than they find.
struct Effort {
    std::size_t longest = 16;
    int growths = 1;
};
inline constexpr Effort thorough{40, 4};

// Looks for such sequences from one state on. It remembers where it found none, until something near there changes.
class Closure {
  public:
    // Keeps references to state and pace. Runs go through here; undo them only all the way, and then call forget().
    explicit Closure(State& state, Pace& pace, Effort effort = {});

    void run(OpId op);
    void forget();

    // Runs what loses nothing within the limit, and an op without an alternative, until there is no more.
    void close(Bytes limit);

  private:
    static constexpr Bytes never = -1;

    bool run_sequence(OpId first, Bytes limit);
    OpId next(Bytes limit);
    std::vector<OpId> safe_part(std::size_t from) const;
    // Calls each(op) for the ops to which the run that was last makes a difference.
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
    std::vector<OpId> nearby_;           // of the sequence that is tried: may be next
    std::vector<std::uint32_t> offered_; // by op: the attempt in which it came to nearby_
    std::uint32_t attempt_ = 0;
    Bytes excess_ = 0; // of the attempt: by how much the cheapest op that did not fit missed the limit

    std::priority_queue<OpId, std::vector<OpId>, std::greater<>> awake_; // ops to try, lowest first
    std::vector<std::uint8_t> is_awake_;
    std::vector<Bytes> fits_below_;           // by op that sleeps: worth another try when no more bytes are held
    std::vector<OpId> hungry_;                // those that sleep for want of memory
    std::vector<std::vector<OpId>> sleepers_; // by op: those to wake when something near it changes
};

} // namespace memsched::order
