#include "memsched/placement/greedy.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>

namespace memsched::placement {
namespace {

constexpr std::int32_t none = std::numeric_limits<std::int32_t>::max();

// The remaining buffers by first section, to find the one with the least rank within a range.
class Waiting {
  public:
    Waiting(const Part& part, const Ranks& ranks)
        : part_(part), leaves_(std::bit_ceil(part.size())), nodes_(2 * leaves_, {none, none}) {
        for (std::size_t b = 0; b < part.size(); ++b) {
            if (part.fixed[b] == free_offset) {
                nodes_[leaves_ + b] = {ranks[b], part.last[b]};
            }
        }
        for (std::size_t node = leaves_ - 1; node > 0; --node) {
            join(node);
        }
    }

    // -1 if none lies in [first, last).
    BufferId best(SectionId first, SectionId last, Pace& pace) const {
        const auto from = std::lower_bound(part_.first.begin(), part_.first.end(), first) - part_.first.begin();
        const auto to = std::lower_bound(part_.first.begin(), part_.first.end(), last) - part_.first.begin();
        Found found{none, -1, 0};
        look(1, 0, leaves_, static_cast<std::size_t>(from), static_cast<std::size_t>(to), last, found);
        pace.spend(10 * found.steps);
        return found.b;
    }

    void remove(BufferId b) {
        std::size_t node = leaves_ + at(b);
        nodes_[node] = {none, none};
        for (node /= 2; node > 0; node /= 2) {
            join(node);
        }
    }

  private:
    struct Node {
        std::int32_t rank, last; // the least within its range
    };
    struct Found {
        std::int32_t rank;
        BufferId b;
        std::int64_t steps; // work done
    };

    void join(std::size_t node) {
        const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
        nodes_[node] = {std::min(left.rank, right.rank), std::min(left.last, right.last)};
    }

    void look(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to, SectionId last,
              Found& found) const {
        ++found.steps;
        if (low >= to || high <= from || nodes_[node].rank >= found.rank || nodes_[node].last > last) {
            return;
        }
        if (node >= leaves_) {
            found = {nodes_[node].rank, static_cast<BufferId>(low), found.steps};
            return;
        }
        const std::size_t middle = (low + high) / 2;
        const bool right_first = nodes_[2 * node + 1].rank < nodes_[2 * node].rank;
        for (const bool right : {right_first, !right_first}) {
            look(2 * node + (right ? 1 : 0), right ? middle : low, right ? high : middle, from, to, last, found);
        }
    }

    const Part& part_;
    std::size_t leaves_;
    std::vector<Node> nodes_;
};

// The skyline as stretches of sections with one floor, by their first section.
class Valleys {
  public:
    // floors: one a section.
    explicit Valleys(const std::vector<Bytes>& floors) : stretch_(floors.size()) {
        SectionId before = 0;
        for (std::size_t first = 0, last = 0; first < floors.size(); first = last) {
            while (last < floors.size() && floors[last] == floors[first]) {
                ++last;
            }
            put(static_cast<SectionId>(first), {static_cast<SectionId>(last), before, floors[first]});
            before = static_cast<SectionId>(first);
        }
    }

    // The first section of a lowest stretch.
    SectionId lowest() {
        while (true) {
            const auto [floor, first] = queue_.top();
            if (stretch_[at(first)].last != 0 && stretch_[at(first)].floor == floor) {
                return first;
            }
            queue_.pop();
        }
    }

    SectionId last(SectionId first) const { return stretch_[at(first)].last; }
    Bytes floor(SectionId first) const { return stretch_[at(first)].floor; }

    // Raises [from, to), which lies in the stretch that begins at `first`.
    void raise(SectionId first, SectionId from, SectionId to, Bytes floor) {
        const Stretch old = stretch_[at(first)];
        if (first < from) {
            put(first, {from, old.before, old.floor});
        }
        put(from, {to, first < from ? first : old.before, floor});
        if (to < old.last) {
            put(to, {old.last, from, old.floor});
        }
        const SectionId left = to < old.last ? to : from;
        if (old.last < static_cast<SectionId>(stretch_.size())) {
            stretch_[at(old.last)].before = left;
        }
    }

    // Fills a stretch up to its lower neighbour and merges stretches that are then equally high.
    void fill(SectionId first) {
        const auto end = static_cast<SectionId>(stretch_.size());
        Stretch own = stretch_[at(first)];
        const Bytes left = first > 0 ? stretch_[at(own.before)].floor : std::numeric_limits<Bytes>::max();
        const Bytes right = own.last < end ? stretch_[at(own.last)].floor : std::numeric_limits<Bytes>::max();
        own.floor = std::min(left, right);
        if (own.last < end && right == own.floor) {
            const SectionId after = own.last;
            own.last = stretch_[at(after)].last;
            stretch_[at(after)].last = 0;
        }
        if (first > 0 && left == own.floor) {
            stretch_[at(first)].last = 0;
            first = own.before;
            own.before = stretch_[at(first)].before;
        }
        if (own.last < end) {
            stretch_[at(own.last)].before = first;
        }
        put(first, own);
    }

  private:
    struct Stretch {
        SectionId last = 0, before = 0; // last 0: no stretch begins here; before: start of the left neighbour
        Bytes floor = 0;
    };
    using Entry = std::pair<Bytes, SectionId>; // floor and first section

    void put(SectionId first, const Stretch& stretch) {
        stretch_[at(first)] = stretch;
        queue_.emplace(stretch.floor, first);
    }

    std::vector<Stretch> stretch_;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_; // lowest first
};

// By section: the highest top of a fixed buffer.
std::vector<Bytes> tops_of_fixed(const Part& part) {
    std::vector<Bytes> tops(part.size(), 0);
    for (const BufferId b : part.fixings) {
        tops[at(b)] = part.fixed[at(b)] + part.extent[at(b)];
    }
    return most_by_section(part, tops);
}

} // namespace

Offsets skyline_by_valleys(const Part& part, const Ranks& ranks, Pace& pace) {
    Waiting waiting(part, ranks);
    Valleys valleys(tops_of_fixed(part));
    Offsets offsets = part.fixed;
    for (std::size_t left = part.size() - part.fixings.size(); left > 0;) {
        const SectionId first = valleys.lowest();
        const BufferId b = waiting.best(first, valleys.last(first), pace);
        if (b < 0) {
            valleys.fill(first);
            continue;
        }
        offsets[at(b)] = align_up(valleys.floor(first), part.alignment[at(b)]);
        valleys.raise(first, part.first[at(b)], part.last[at(b)], offsets[at(b)] + part.extent[at(b)]);
        waiting.remove(b);
        --left;
    }
    return offsets;
}

} // namespace memsched::placement
