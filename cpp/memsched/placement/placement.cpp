#include "memsched/placement/placement.h"

#include "memsched/placement/improve.h"
#include "memsched/placement/search.h"
#include "memsched/placement/squeeze.h"

#include <algorithm>

namespace memsched::placement {
namespace {

constexpr std::size_t most_searched = 3000;       // buffers per part: the search recurses by buffer
constexpr std::int64_t most_members = 50'000'000; // for the tables of the search
constexpr std::size_t most_quadratic = 40'000;    // buffers per part for rules that take O(n^2)
constexpr std::int64_t first_steps = 50'000'000;  // for the first rule, even if time is short
constexpr std::int64_t tries_per_round = 40;
constexpr std::int64_t passes_per_turn = 256;
constexpr std::size_t turns_before = 2; // of the search for a capacity, each twice as long as the one before
constexpr std::int64_t most_nodes = std::int64_t{1} << 40;

struct Best {
    const Part* part;
    Offsets offsets;
    Bytes height, bound;

    void take(Offsets other) {
        const Bytes top = height_of(*part, other);
        if (top < height) {
            height = top;
            offsets = std::move(other);
        }
    }
};

// Ways to break ties between buffers that can go equally low. The first is the best single rule.
std::vector<Keys> skyline_keys() {
    return {{Key::area, Key::bytes},    {Key::bytes, Key::width}, {Key::width, Key::bytes}, {Key::room, Key::area},
            {Key::sections, Key::area}, {Key::first, Key::last},  {Key::last, Key::bytes}};
}

// Ways to break ties between buffers that can go equally low. They solve different instances.
std::vector<Order> search_orders() {
    return {{{Key::room, Key::width, Key::area}, false},    {{Key::room, Key::width, Key::area}, true},
            {{Key::first, Key::room, Key::bytes}, false},   {{Key::last, Key::width, Key::area}, false},
            {{Key::room, Key::sections, Key::bytes}, true}, {{Key::width, Key::area, Key::room}, false},
            {{Key::area, Key::room, Key::sections}, true}};
}

// All rules except that of the first placement, until one meets the goal.
void portfolio(Best& best, Bytes goal, std::size_t most, Pace& pace) {
    const Part& part = *best.part;
    const std::vector<Keys> keys = skyline_keys();
    for (std::size_t k = part.fixings.empty() ? 1 : 0; k < keys.size(); ++k) {
        best.take(skyline(part, rank_by(part, keys[k]), pace));
        if (best.height <= goal) {
            return;
        }
    }
    if (part.size() > most) {
        return;
    }
    const std::vector<Ranks> orders = {rank_by(part, {Key::bytes, Key::width}), rank_by(part, {Key::area, Key::bytes}),
                                       rank_by(part, {Key::width, Key::bytes}), pyramid_ranks(part)};
    for (const Ranks& ranks : orders) {
        for (const bool tightest : {false, true}) {
            best.take(fit_in_order(part, ranks, tightest, pace));
            if (best.height <= goal) {
                return;
            }
        }
    }
}

// By the first rule, on top of the fixed buffers.
Best first_placement(const Part& part, Pace& pace) {
    Best best{&part, pile(part), 0, part.least};
    best.height = height_of(part, best.offsets);
    try {
        best.take(skyline_by_valleys(part, rank_by(part, skyline_keys().front()), pace));
    } catch (const Stopped&) { // keep the pile
    }
    return best;
}

// Improves one part until it is as low as the goal or its own bound, whichever is higher. Lower is not needed.
class Refiner {
  public:
    // A search, which is made when it is needed, may be lent to several.
    Refiner(Best& best, Bytes goal, bool capped, std::optional<Search>& search, const Progress& progress)
        : best_(best), search_(search), goal_(goal), capped_(capped), progress_(progress),
          nodes_(3 * static_cast<std::int64_t>(best.part->size())), random_(best.part->size()) {}

    bool done() const { return best_.height <= aim() || (capped_ && best_.bound > goal_); }

    // Each turn takes about twice as long as the one before; true when told to stop.
    bool turn() {
        const Part& part = *best_.part;
        const bool searches = part.size() <= most_searched && count_members(part) <= most_members;
        if (searches && !search_) {
            search_.emplace(part);
        }
        const std::vector<Order> orders = search_orders();
        for (std::size_t k = 0; searches && k < orders.size() && !done(); ++k) {
            ask(orders[k], aim());
            if (!capped_ && !done()) { // between halfway down and just below the current height
                const Bytes gap = best_.height - aim();
                ask(orders[k], best_.height - std::max<Bytes>(1, gap >> (1 + (round_ + k) % 8)));
                if (squeeze()) {
                    return true;
                }
            }
            if (progress_.tick(0)) {
                return true;
            }
        }
        if ((!searches || (capped_ && round_ > 1)) && squeeze()) {
            return true;
        }
        const bool stopped =
            !done() && improve_placement(part, aim(), tries_per_round, random_, best_.offsets, progress_);
        best_.height = height_of(part, best_.offsets);
        nodes_ = std::min(2 * nodes_, most_nodes);
        ++round_;
        return stopped;
    }

  private:
    Bytes aim() const { return std::max(goal_, best_.bound); }

    void ask(const Order& order, Bytes capacity) {
        const Search::Outcome outcome = search_->run(order, capacity, nodes_, progress_);
        if (outcome == Search::Outcome::found) {
            best_.take(search_->offsets());
        } else if (outcome == Search::Outcome::none) {
            best_.bound = std::max(best_.bound, search_->next_capacity());
        }
    }

    bool squeeze() { // true when told to stop
        if (done()) {
            return false;
        }
        if (!squeeze_) {
            squeeze_.emplace(*best_.part);
        }
        const bool stopped = squeeze_->run(aim(), passes_per_turn, random_, best_.offsets, progress_);
        best_.height = height_of(*best_.part, best_.offsets);
        return stopped;
    }

    Best& best_;
    std::optional<Search>& search_;
    std::optional<Squeeze> squeeze_;
    Bytes goal_;
    bool capped_; // placements above the goal are useless
    const Progress& progress_;
    std::int64_t nodes_; // of one search
    std::size_t round_ = 0;
    std::mt19937_64 random_;
};

// Until there is nothing to gain; true when told to stop. With a capacity, the ways to a lower placement are tried as
// well, a little later: some reach the capacity though a search for it alone does not.
bool refine(Best& best, Bytes goal, Bytes bound, bool capped, const Progress& progress) {
    std::optional<Search> search;
    Best other = best;
    Refiner refiner(best, goal, capped, search, progress), lower(other, bound, false, search, progress);
    for (std::size_t turn = 0; !refiner.done(); ++turn) {
        if (refiner.turn()) {
            return true;
        }
        if (capped && turn >= turns_before && !refiner.done() && !lower.done()) {
            const bool stopped = lower.turn();
            best.take(other.offsets);
            best.bound = std::max(best.bound, other.bound);
            if (stopped) {
                return true;
            }
        }
    }
    return false;
}

// The highest end of a buffer that occupies nothing; its offset is fixed.
Bytes idle_top(std::span<const Buffer> buffers) {
    Bytes top = 0;
    for (const Buffer& buffer : buffers) {
        if (!occupies(buffer)) {
            top = std::max(top, (is_fixed(buffer) ? buffer.offset : 0) + buffer.bytes);
        }
    }
    return top;
}

Placed gather(std::span<const Buffer> buffers, const std::vector<Best>& all, Bytes idle) {
    Placed placed;
    for (const Buffer& buffer : buffers) {
        placed.offsets.push_back(is_fixed(buffer) ? buffer.offset : 0);
    }
    placed.height = placed.lower_bound = idle;
    for (const Best& best : all) {
        for (std::size_t b = 0; b < best.part->size(); ++b) {
            placed.offsets[at(best.part->id[b])] = best.offsets[b];
        }
        placed.height = std::max(placed.height, best.height);
        placed.lower_bound = std::max(placed.lower_bound, best.bound);
    }
    return placed;
}

} // namespace

Placed place(std::span<const Buffer> buffers, const Options& options, const Progress& progress) {
    check_buffers(buffers);
    const std::vector<Part> parts = parts_of(buffers);
    const Bytes idle = idle_top(buffers);
    Bytes bound = idle;
    std::vector<Best> all;
    Pace patient(progress, first_steps);
    for (const Part& part : parts) {
        all.push_back(first_placement(part, patient));
        bound = std::max(bound, part.least);
    }
    std::ranges::sort(all, {}, [](const Best& one) { return std::pair(-one.bound, one.part->id.front()); });
    const bool hopeless = options.capacity && bound > *options.capacity;
    const Bytes goal = options.capacity ? *options.capacity : bound;
    const std::size_t quadratic = options.search ? most_searched : most_quadratic; // the search has better rules
    try {
        Pace pace(progress);
        for (Best& best : all) {
            if (best.height > goal && !(hopeless && !options.search) && !progress.tick(0)) {
                portfolio(best, std::max(goal, best.bound), quadratic, pace);
            }
        }
    } catch (const Stopped&) { // keep what there is
    }
    for (Best& best : all) {
        if (!options.search || best.height <= std::max(goal, bound)) {
            continue;
        }
        const bool stopped =
            refine(best, options.capacity ? goal : bound, bound, options.capacity.has_value(), progress);
        bound = std::max(bound, best.bound);
        if (stopped) {
            break;
        }
    }
    return gather(buffers, all, idle);
}

} // namespace memsched::placement
