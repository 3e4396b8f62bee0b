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
    // A held range that overlaps [low, high), if there is one.
    std::optional<Range> taken(Bytes low, Bytes high) const;
    // Holds a free range. Moves start to when its previous holders have actually released it (E7).
    void take(Bytes low, Bytes high, Seconds& start);
    // Frees the range that begins here, in list order; in time its bytes are released at `done`.
    void leave(Bytes low, Seconds done);
    // No later step starts before this moment.
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
