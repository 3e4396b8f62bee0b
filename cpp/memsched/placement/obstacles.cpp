#include "memsched/placement/obstacles.h"

#include "memsched/placement/buffers.h"

#include <algorithm>
#include <array>
#include <bit>

namespace memsched::placement {
namespace {

constexpr std::size_t most_leaves = 4096;
constexpr std::size_t most_blocks = 16; // of a query by lists; what lives longer reads the list of all

} // namespace

Obstacles::Obstacles(const std::vector<Obstacle>& by_offset, std::size_t sections) {
    const std::size_t most = std::min(most_leaves, by_offset.size());
    leaves_ = std::bit_ceil(std::clamp<std::size_t>(sections, 1, std::max<std::size_t>(most, 1)));
    width_ = static_cast<SectionId>(sections / leaves_ + 1);
    std::vector<std::vector<Obstacle>> lists(2 * leaves_);
    lists[0] = by_offset;
    for (const Obstacle& one : by_offset) {
        std::size_t from = at(one.first / width_) + leaves_, to = at((one.last - 1) / width_) + leaves_ + 1;
        for (; from < to; from /= 2, to /= 2) { // the widest nodes within
            if (from % 2 == 1) {
                lists[from++].push_back(one);
            }
            if (to % 2 == 1) {
                lists[--to].push_back(one);
            }
        }
    }
    begins_ = {0};
    for (const std::vector<Obstacle>& of_node : lists) {
        Bytes reach = 0;
        for (const Obstacle& one : of_node) {
            reach = std::max(reach, one.top);
            entries_.push_back({one, reach});
        }
        top_ = std::max(top_, reach);
        begins_.push_back(entries_.size());
    }
}

Bytes Obstacles::lowest(SectionId first, SectionId last, Bytes bytes, Bytes alignment, Bytes floor) const {
    std::array<List, 4 * most_blocks + 2 * 12> lists;
    std::size_t count = 0;
    std::size_t from = at(first / width_) + leaves_, to = at((last - 1) / width_) + leaves_;
    if (to - from >= most_blocks) {
        lists[count++] = list(0);
    } else {
        for (; from > 0; from /= 2, to /= 2) {
            for (std::size_t node = from; node <= to; ++node) {
                if (!list(node).empty()) {
                    lists[count++] = list(node);
                }
            }
        }
    }
    Bytes offset = align_up(floor, alignment);
    const auto reaches = [](Bytes height, const Entry& one) { return height < one.reach; };
    const auto clear = [&](List some) { // by offset: one pass
        auto one = std::upper_bound(some.begin(), some.end(), offset, reaches);
        for (; one != some.end() && one->of.offset < offset + bytes; ++one) {
            if (one->of.first < last && one->of.last > first && one->of.top > offset) {
                offset = align_up(one->of.top, alignment);
            }
        }
    };
    std::size_t unmoved = 0; // lists in a row that the offset is clear of
    for (std::size_t k = 0; unmoved < count; k = (k + 1) % count) {
        const Bytes before = offset;
        clear(lists[k]);
        unmoved = offset == before ? unmoved + 1 : 1;
    }
    return offset;
}

std::int64_t Obstacles::steps() const {
    return static_cast<std::int64_t>(list(0).size() / std::max<std::size_t>(4, leaves_ / 8));
}

} // namespace memsched::placement
