// Memory that is released when transfers end, in order of time.
#pragma once

#include "memsched/support/units.h"

#include <cstddef>
#include <vector>

namespace memsched {

// Successive queries are usually similar, so each search starts at the previous answer.
class AwaitedBytes {
  public:
    void clear();
    void add(Seconds done, Bytes bytes);
    // The time from which at most `most` (>= 0) bytes are awaited; 0 if that is the case now.
    Seconds when_left(Bytes most);
    // Drops bytes that are released by then.
    void forget_until(Seconds now);

  private:
    struct Awaited {
        Seconds done;
        Bytes bytes;
    };
    std::vector<Awaited> all_; // ascending by done, from head_ on
    std::size_t head_ = 0;
    std::size_t passed_ = 0; // end of the previous search,
    Bytes passed_bytes_ = 0; // and the bytes from head_ to there
    Bytes bytes_ = 0;        // from head_ on
};

} // namespace memsched
