// Bytes that fixed buffers occupy, indexed by time and offset.
#pragma once

#include "memsched/support/units.h"

#include <cstdint>
#include <span>
#include <vector>

namespace memsched::placement {

using SectionId = std::int32_t; // index of a section of a part

// Bytes that are occupied in the sections [first, last).
struct Obstacle {
    SectionId first, last;
    Bytes offset, top;
};

// A tree over blocks of sections. Each obstacle is in the lists of the few nodes that cover its blocks, so a query of a
// few sections reads the lists of the nodes above and below them, and not what lies at other times.
class Obstacles {
  public:
    Obstacles() = default;
    // by_offset: sorted by offset; sections: how many there are.
    Obstacles(const std::vector<Obstacle>& by_offset, std::size_t sections);

    Bytes top() const { return top_; }
    // The least offset >= floor that is aligned, with `bytes` free bytes in all of these sections.
    Bytes lowest(SectionId first, SectionId last, Bytes bytes, Bytes alignment, Bytes floor) const;
    // Steps of a query of a few sections, approximately.
    std::int64_t steps() const;

  private:
    struct Entry {
        Obstacle of;
        Bytes reach; // the highest top of this one and of those before it in the list
    };
    using List = std::span<const Entry>;

    List list(std::size_t node) const { return {entries_.data() + begins_[node], entries_.data() + begins_[node + 1]}; }

    std::size_t leaves_ = 1;     // blocks: a power of two; node n has the children 2 n and 2 n + 1, the root is 1
    SectionId width_ = 1;        // sections of a block
    std::vector<Entry> entries_; // of the nodes' lists, each by offset; node 0 has all
    std::vector<std::size_t> begins_{0, 0, 0};
    Bytes top_ = 0;
};

} // namespace memsched::placement
