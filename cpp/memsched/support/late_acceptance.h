// Late acceptance hill climbing (Burke and Bykov, 2017): a move may be as bad as the walk was some moves ago.
#pragma once

#include <cstddef>
#include <vector>

namespace memsched {

class LateAcceptance {
  public:
    explicit LateAcceptance(std::size_t memory) : past_(memory) {}

    void restart(double value) {
        past_.assign(past_.size(), value);
        current_ = value;
        next_ = 0;
    }

    // Whether the walk moves to a neighbour of this value; called once per move.
    bool accept(double value) {
        double& old = past_[next_];
        next_ = (next_ + 1) % past_.size();
        const bool accepted = value <= current_ || value <= old;
        current_ = accepted ? value : current_;
        old = current_;
        return accepted;
    }

  private:
    std::vector<double> past_;
    std::size_t next_ = 0;
    double current_ = 0;
};

} // namespace memsched
