// A lower bound on the makespan of every schedule of a graph, whatever is kept, travels or runs again, in any order.
#pragma once

#include "memsched/bounds/retention.h"
#include "memsched/model/device.h"

#include <vector>

namespace memsched {

// One line of a retention: every schedule runs ops again, after p has started, for at least `least - price * held`
// seconds, where `held` are the bytes held then. It is found again from the op and the price alone.
struct CutBound {
    Seconds seconds = 0; // the bound, at least what is known without a cut; infinity: there is no schedule
    OpId op = -1;        // p; -1: the bound is what is known
    Seconds price = 0;   // per byte
};

// The trade of bytes held against time at one op, as points found so far.
class RetentionCurve {
  public:
    // capacity: bytes, without resident. total: of the fastest times of all ops that run on the device in any case.
    // changes: as for Retention.
    RetentionCurve(const Graph& graph, OpId p, Retention::Order order, const Device& device, Bytes capacity,
                   Seconds total, const LargeUpdates* changes = nullptr);

    // Asks for prices until the best is found, at most `most` of them, or until none can be better than `known`.
    const CutBound& refine(int most, const CutBound& known, Pace& pace);

    const CutBound& best() const { return best_; }

  private:
    void ask(Seconds price, Pace& pace);
    Seconds time_of(const Retention::Point& line) const;

    Retention retention_;
    Device device_;
    Bytes capacity_;
    Seconds total_;
    std::vector<Retention::Point> points_; // by price
    CutBound best_;
};

// The best line of some ops at which the plain run holds most. Ends with what it has after about 0.1 s of work, the
// same on every machine, or when told to. Known without a cut is the sum of the fastest times; where lists are
// repeated, the bound of these, and this is one on the period. budget: bytes, resident included.
CutBound cut_bound(const Graph& graph, const Device& device, Bytes budget, const Progress& progress);

} // namespace memsched
