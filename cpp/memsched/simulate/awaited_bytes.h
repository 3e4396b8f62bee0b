// Memory that is given back when transfers end, in order of time.
#pragma once

#include "memsched/support/units.h"

#include <cstddef>
#include <vector>

namespace memsched {

// Those who ask mostly ask for about as much as before: the answer is sought from the last one on.
class AwaitedBytes {
  public:
    void clear();
    void add(Seconds done, Bytes bytes);
    // When no more than `most` bytes are still awaited; 0 if that is so now. most >= 0.
    Seconds when_left(Bytes most);
    // Those that are back by then are awaited no longer.
    void forget_until(Seconds now);

  private:
    struct Awaited {
        Seconds done;
        Bytes bytes;
    };
    std::vector<Awaited> all_; // ascending by done, from head_ on
    std::size_t head_ = 0;
    std::size_t passed_ = 0; // up to here was last asked for,
    Bytes passed_bytes_ = 0; // so many from head_ on
    Bytes bytes_ = 0;        // from head_ on
};

} // namespace memsched
