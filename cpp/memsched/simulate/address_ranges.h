// Which address ranges are held, for lists of steps with addresses.
#pragma once

#include "memsched/support/units.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace memsched {

class AddressRanges {
  public:
    using Range = std::pair<Bytes, Bytes>; // [low, high)

    void clear();
    // What is held of [low, high), if anything is.
    std::optional<Range> taken(Bytes low, Bytes high) const;
    // Holds it; nothing of it may be held. Moves start to when those that held it before are really gone (E7).
    void take(Bytes low, Bytes high, Seconds& start);
    // By list order the range that begins here is free; in time its bytes come back at `done`.
    void leave(Bytes low, Seconds done);
    // No step starts before this moment any more.
    void forget_before(Seconds issue);

  private:
    struct Leaving {
        Bytes low, high;
        Seconds done;
    };
    std::map<Bytes, Bytes> held_; // by list order, low -> high
    std::vector<Leaving> leaving_;
};

} // namespace memsched
