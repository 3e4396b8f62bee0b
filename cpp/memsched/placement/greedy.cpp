#include "memsched/placement/greedy.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

namespace memsched::placement {
namespace {

// The highest top by section; it only grows.
class Floors {
  public:
    explicit Floors(std::size_t sections) : leaves_(sections), most_(2 * sections, 0), all_(2 * sections, 0) {}

    Bytes most(SectionId first, SectionId last) const {
        Bytes found = 0;
        const std::size_t left = at(first) + leaves_, right = at(last) + leaves_;
        for (std::size_t l = left, r = right; l < r; l /= 2, r /= 2) {
            found = std::max({found, l % 2 == 1 ? most_[l++] : 0, r % 2 == 1 ? most_[--r] : 0});
        }
        for (std::size_t node : {left, right - 1}) {
            for (node /= 2; node > 0; node /= 2) {
                found = std::max(found, all_[node]);
            }
        }
        return found;
    }

    void raise(SectionId first, SectionId last, Bytes top) {
        const std::size_t left = at(first) + leaves_, right = at(last) + leaves_;
        const auto raise_node = [&](std::size_t node) {
            most_[node] = std::max(most_[node], top);
            all_[node] = std::max(all_[node], top);
        };
        for (std::size_t l = left, r = right; l < r; l /= 2, r /= 2) {
            if (l % 2 == 1) {
                raise_node(l++);
            }
            if (r % 2 == 1) {
                raise_node(--r);
            }
        }
        for (std::size_t node : {left, right - 1}) {
            for (node /= 2; node > 0; node /= 2) {
                most_[node] = std::max({most_[node], most_[2 * node], most_[2 * node + 1]});
            }
        }
    }

  private:
    std::size_t leaves_;
    std::vector<Bytes> most_; // by tree entry: the largest within its range
    std::vector<Bytes> all_;  // by tree entry: its whole range is at least this high
};

std::vector<Bytes> most_room(const Part& part) {
    Floors rooms(part.sections());
    for (std::size_t s = 0; s < part.sections(); ++s) {
        rooms.raise(static_cast<SectionId>(s), static_cast<SectionId>(s + 1), part.room[s]);
    }
    std::vector<Bytes> found(part.size());
    for (std::size_t b = 0; b < part.size(); ++b) {
        found[b] = rooms.most(part.first[b], part.last[b]);
    }
    return found;
}

} // namespace

std::int64_t value_of(const Part& part, BufferId b, Key key, Bytes room) {
    switch (key) {
    case Key::bytes:
        return part.bytes[at(b)];
    case Key::width:
        return part.length[at(b)];
    case Key::sections:
        return part.last[at(b)] - part.first[at(b)];
    case Key::room:
        return room;
    case Key::first:
        return -part.first[at(b)];
    case Key::last:
        return part.last[at(b)];
    default: { // saturated: only the order matters
        std::int64_t area = 0;
        const bool huge = __builtin_mul_overflow(part.bytes[at(b)], part.length[at(b)], &area);
        return huge ? std::numeric_limits<std::int64_t>::max() : area;
    }
    }
}

Ranks rank_by(const Part& part, const Keys& keys) {
    const std::vector<Bytes> room = most_room(part);
    std::vector<BufferId> order = all_ids(part.size());
    std::ranges::stable_sort(order, [&](BufferId a, BufferId b) {
        for (const Key key : keys) {
            const std::int64_t of_a = value_of(part, a, key, room[at(a)]);
            const std::int64_t of_b = value_of(part, b, key, room[at(b)]);
            if (of_a != of_b) {
                return of_a > of_b;
            }
        }
        return false;
    });
    return inverse(order);
}

Offsets skyline(const Part& part, const Ranks& ranks, Pace& pace) {
    if (part.fixings.empty()) {
        return skyline_by_valleys(part, ranks, pace);
    }
    Floors floors(part.sections());
    const std::int64_t steps = 64 + part.obstacles.steps(); // of one query
    const auto lowest = [&](BufferId b) {
        pace.spend(steps);
        const Bytes floor = floors.most(part.first[at(b)], part.last[at(b)]);
        return part.fixed[at(b)] != free_offset ? part.fixed[at(b)] : lowest_offset(part, b, floor);
    };
    using Next = std::tuple<Bytes, std::int32_t, BufferId>; // offset, rank, buffer
    std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
    for (std::size_t b = 0; b < part.size(); ++b) {
        queue.emplace(lowest(static_cast<BufferId>(b)), ranks[b], static_cast<BufferId>(b));
    }
    Offsets offsets(part.size(), 0);
    while (!queue.empty()) {
        const auto [expected, rank, id] = queue.top();
        queue.pop();
        const std::size_t b = at(id);
        offsets[b] = lowest(id);
        if (offsets[b] == expected) {
            floors.raise(part.first[b], part.last[b], offsets[b] + part.extent[b]);
        } else { // others have been placed below it since
            queue.emplace(offsets[b], rank, id);
        }
    }
    return offsets;
}

Offsets fit_in_order(const Part& part, const Ranks& ranks, bool tightest, Pace& pace) {
    Offsets offsets(part.size(), 0);
    std::vector<BufferId> placed(part.fixings); // by offset
    for (const BufferId b : placed) {
        offsets[at(b)] = part.fixed[at(b)];
    }
    const auto below = [&](BufferId a, BufferId b) { return offsets[at(a)] < offsets[at(b)]; };
    for (const BufferId b : inverse(ranks)) {
        if (part.fixed[at(b)] != free_offset) {
            continue;
        }
        pace.spend(static_cast<std::int64_t>(placed.size()));
        const Bytes bytes = part.bytes[at(b)], alignment = part.alignment[at(b)];
        Bytes best = -1, least = std::numeric_limits<Bytes>::max(), free_from = 0;
        for (const BufferId other : placed) {
            if (part.first[at(other)] >= part.last[at(b)] || part.last[at(other)] <= part.first[at(b)]) {
                continue;
            }
            const Bytes gap = offsets[at(other)] - free_from;
            if (gap >= bytes && gap < least) {
                best = free_from;
                least = gap;
                if (!tightest || gap == bytes) {
                    break;
                }
            }
            free_from = std::max(free_from, align_up(offsets[at(other)] + part.extent[at(other)], alignment));
        }
        offsets[at(b)] = best < 0 ? free_from : best;
        placed.insert(std::upper_bound(placed.begin(), placed.end(), b, below), b);
    }
    return offsets;
}

Offsets pile(const Part& part) {
    Offsets offsets = part.fixed;
    Bytes top = part.obstacles.top();
    for (std::size_t b = 0; b < part.size(); ++b) {
        if (offsets[b] == free_offset) {
            offsets[b] = align_up(top, part.alignment[b]);
            top = offsets[b] + part.extent[b];
        }
    }
    return offsets;
}

Ranks pyramid_ranks(const Part& part) {
    Ranks ranks(part.size(), -1);
    std::int32_t next = 0;
    SectionId from = 0, to = static_cast<SectionId>(part.sections());
    const std::vector<BufferId> by_width = inverse(rank_by(part, {Key::width, Key::bytes}));
    for (const BufferId b : by_width) { // the next one inside is never wider
        if (part.first[at(b)] >= from && part.last[at(b)] <= to) {
            from = part.first[at(b)];
            to = part.last[at(b)];
            ranks[at(b)] = next++;
        }
    }
    for (const BufferId b : inverse(rank_by(part, {Key::bytes, Key::width}))) {
        if (ranks[at(b)] < 0) {
            ranks[at(b)] = next++;
        }
    }
    return ranks;
}

Bytes height_of(const Part& part, const Offsets& offsets) {
    Bytes top = 0;
    for (std::size_t b = 0; b < part.size(); ++b) {
        top = std::max(top, offsets[b] + part.bytes[b]);
    }
    return top;
}

} // namespace memsched::placement
