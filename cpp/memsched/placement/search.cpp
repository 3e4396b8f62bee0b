#include "memsched/placement/search.h"

#include <algorithm>
#include <limits>

// Why nothing is lost. Let P be a placement within the capacity, one with the least sum of offsets. One branch of the
// search leads to P, and no rule cuts it. At each node of this branch the placed buffers lie as in P, and all others
// come after the last placed one in P, by offset and then by rank. Let b be the next buffer of P, at the offset o.
//
// Rest. b lies at rest_[b]. The placed buffers that b meets begin at or below o and share no byte with it, so they end
// at or below o. Fixed buffers still to come are where they are. So o is among the offsets of which rest_[b] is the
// least: aligned, above the placed ones, clear of the fixed ones. If rest_[b] were below o, b could move down to it,
// since free buffers still to come lie at o or above, hence above b. Then the sum of P would not be the least.
//
// Gaps. No c still to come has rest_[c] + bytes <= o. All others still to come lie at o or above, and so does a free c
// in P: it could move down to rest_[c]. A fixed c lies at rest_[c] and would have come before b.
//
// Lifting. Let c have been tried at rest_[c] before b, on the same level. In P it comes after b, so it lies higher than
// rest_[c], where it would come before b. So a buffer that was not placed at this level has raised its rest by the time
// of its turn, and c lies on that buffer or on a fixed one: at or above the least lowest_ + extent, aligned, of all
// that c meets and that are still to come. If there are none, or if c is fixed, P is not in the rest of the level.
//
// Floors. The buffers of a section that are still to come lie one above the other, all at the least of their lowest_ or
// above. All offsets are multiples of the unit, so each takes its extent; only the topmost may take less, by the slack.
//
// Pieces. No rule for a buffer looks beyond those that it meets, so pieces are problems of their own. What is found for
// one loses nothing in another.
//
// Ranks. Buffers at one offset do not meet, so any order among them leads to P, and a piece may rank its buffers anew.
// But lifting compares siblings, so all candidates of a level must see the same ranks. New ranks are undone before the
// next candidate of a level is tried, also those of pieces that were found while a later one was not.
//
// The next capacity. A larger capacity changes the search only where `fits` said no, and first where the refused top
// was the least. `fits` notes that top; with a capacity below it the search is the same.

namespace memsched::placement {
namespace {

constexpr Bytes gone = std::numeric_limits<Bytes>::max() / 2;

// By section: its buffers.
IdLists members_of(const Part& part) {
    return IdLists(part.sections(), [&](const auto& put) {
        for (std::size_t b = 0; b < part.size(); ++b) {
            for (SectionId s = part.first[b]; s < part.last[b]; ++s) {
                put(at(s), static_cast<BufferId>(b));
            }
        }
    });
}

// By buffer: those that it shares a section with.
IdLists overlaps_of(const Part& part) {
    return IdLists(part.size(), [&](const auto& put) {
        for (std::size_t a = 0; a < part.size(); ++a) { // by first section, so what begins before a ends is one range
            for (std::size_t b = a + 1; b < part.size() && part.first[b] < part.last[a]; ++b) {
                put(a, static_cast<BufferId>(b));
                put(b, static_cast<BufferId>(a));
            }
        }
    });
}

} // namespace

Search::Search(const Part& part) : part_(part), members_(members_of(part)), overlaps_(overlaps_of(part)) {}

void Search::reset(Bytes capacity) {
    const std::size_t n = part_.size(), sections = part_.sections();
    capacity_ = capacity;
    next_ = gone;
    nodes_ = 0;
    placed_.assign(n, 0);
    offsets_.assign(n, 0);
    lowest_.resize(n);
    ranks_.assign(n, 0);
    cut_.assign(sections, 0);
    for (std::size_t b = 0; b < n; ++b) {
        const auto id = static_cast<BufferId>(b);
        lowest_[b] = part_.fixed[b] != free_offset ? part_.fixed[b] : lowest_offset(part_, id, 0);
        for (SectionId s = part_.first[b]; s + 1 < part_.last[b]; ++s) {
            ++cut_[at(s)];
        }
    }
    floor_.assign(sections, gone);
    witness_.assign(sections, 0);
    left_.resize(sections);
    for (std::size_t s = 0; s < sections; ++s) {
        left_[s] = part_.room[s] - part_.slack[s];
        for (const BufferId b : members_[s]) {
            if (lowest_[at(b)] < floor_[s]) {
                floor_[s] = lowest_[at(b)];
                witness_[s] = b;
            }
        }
    }
    candidates_.clear();
    order_.clear();
    offset_changes_.clear();
    rest_ = lowest_;
    floor_changes_.clear();
    rank_changes_.clear();
}

Search::Outcome Search::run(const Order& order, Bytes capacity, std::int64_t nodes, const Progress& progress) {
    rule_ = order;
    progress_ = &progress;
    most_nodes_ = nodes;
    reset(capacity);
    const Range all{0, static_cast<SectionId>(part_.sections()), 0, static_cast<BufferId>(part_.size())};
    for (std::size_t b = 0; b < part_.size(); ++b) {
        if (!fits(lowest_[b] + part_.bytes[b])) {
            return Outcome::none;
        }
    }
    for (std::size_t s = 0; s < part_.sections(); ++s) {
        if (!fits(floor_[s] + left_[s])) {
            return Outcome::none;
        }
    }
    rank(all);
    return search(all, {0, -1});
}

// A node takes from nanoseconds to milliseconds, so the work done decides when to check.
bool Search::told_to_stop() {
    if (work_ < Pace::steps_per_tick) {
        return false;
    }
    work_ = 0;
    return progress_->tick(0);
}

// Remembers the capacity that would have been enough.
bool Search::fits(Bytes top) {
    if (top <= capacity_) {
        return true;
    }
    next_ = std::min(next_, top);
    return false;
}

// False when all are placed.
bool Search::add_candidates(const Range& range, Position after) {
    // A buffer placed above a gap in which another remaining one fits is useless: that one could move down.
    Bytes least_top = gone;
    for (BufferId b = range.begin; b < range.end; ++b) {
        least_top = std::min(least_top, rest_[at(b)] + part_.bytes[at(b)]);
    }
    const std::size_t before = candidates_.size();
    for (BufferId b = range.begin; b < range.end; ++b) {
        const Bytes offset = lowest_[at(b)];
        if (offset < least_top && offset >= after.offset && rest_[at(b)] == offset &&
            (offset > after.offset || ranks_[at(b)] > after.rank)) {
            candidates_.push_back({offset, b});
        }
    }
    std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(before), candidates_.end(),
              [&](const Candidate& x, const Candidate& y) {
                  return x.offset != y.offset ? x.offset < y.offset : ranks_[at(x.b)] < ranks_[at(y.b)];
              });
    return least_top < gone;
}

Search::Outcome Search::search(const Range& range, Position after) {
    work_ += range.end - range.begin;
    if (++nodes_ > most_nodes_ || told_to_stop()) {
        return Outcome::stopped;
    }
    const std::size_t before = candidates_.size();
    const Mark mark = here();
    Outcome outcome = add_candidates(range, after) ? Outcome::none : Outcome::found;
    for (std::size_t k = before; k < candidates_.size(); ++k) {
        const Candidate candidate = candidates_[k];
        outcome = place(range, candidate);
        if (outcome != Outcome::none || !skip(candidate)) {
            break;
        }
    }
    if (outcome != Outcome::found) {
        undo(mark);
    }
    candidates_.resize(before);
    return outcome;
}

// b must no longer rest where it is, so it will rest on one that is not yet placed.
bool Search::skip(const Candidate& candidate) {
    const BufferId b = candidate.b;
    Bytes least = gone;
    for (const BufferId other : overlaps_[at(b)]) {
        least = std::min(least, placed_[at(other)] ? gone : lowest_[at(other)] + part_.extent[at(other)]);
    }
    if (least == gone || part_.fixed[at(b)] != free_offset) {
        return false;
    }
    least = lowest_offset(part_, b, least);
    if (least <= lowest_[at(b)]) {
        return true;
    }
    offset_changes_.push_back({b, rest_[at(b)], lowest_[at(b)]});
    lowest_[at(b)] = least;
    return fits(least + part_.bytes[at(b)]) && lift_floors(part_.first[at(b)], part_.last[at(b)], candidate.offset);
}

Search::Outcome Search::place(const Range& range, const Candidate& candidate) {
    const BufferId b = candidate.b;
    const Bytes offset = candidate.offset, extent = part_.extent[at(b)];
    const Mark mark = here();
    order_.push_back(b);
    offsets_[at(b)] = offset;
    placed_[at(b)] = 1;
    offset_changes_.push_back({b, rest_[at(b)], lowest_[at(b)]});
    rest_[at(b)] = gone;
    lowest_[at(b)] = gone;
    for (SectionId s = part_.first[at(b)]; s < part_.last[at(b)]; ++s) {
        left_[at(s)] -= extent;
        --cut_[at(s)];
    }
    ++cut_[at(part_.last[at(b)] - 1)];
    Outcome outcome = Outcome::none;
    if (lift_overlapping(b, offset + extent) && lift_floors(range.first, range.last, offset)) {
        outcome = search_pieces(range, b, {offset, ranks_[at(b)]});
    }
    if (outcome != Outcome::found) {
        undo(mark);
    }
    return outcome;
}

Search::Mark Search::here() const {
    return {order_.size(), offset_changes_.size(), floor_changes_.size(), rank_changes_.size()};
}

void Search::undo(const Mark& mark) {
    while (floor_changes_.size() > mark.floors) {
        const FloorChange& change = floor_changes_.back();
        floor_[at(change.s)] = change.floor;
        witness_[at(change.s)] = change.witness;
        floor_changes_.pop_back();
    }
    while (order_.size() > mark.order) { // including those of pieces that were found
        const BufferId b = order_.back();
        for (SectionId s = part_.first[at(b)]; s < part_.last[at(b)]; ++s) {
            left_[at(s)] += part_.extent[at(b)];
            ++cut_[at(s)];
        }
        --cut_[at(part_.last[at(b)] - 1)];
        placed_[at(b)] = 0;
        order_.pop_back();
    }
    while (offset_changes_.size() > mark.offsets) {
        const OffsetChange& change = offset_changes_.back();
        rest_[at(change.b)] = change.rest;
        lowest_[at(change.b)] = change.lowest;
        offset_changes_.pop_back();
    }
    while (rank_changes_.size() > mark.ranks) {
        ranks_[at(rank_changes_.back().first)] = rank_changes_.back().second;
        rank_changes_.pop_back();
    }
}

bool Search::lift_overlapping(BufferId b, Bytes top) {
    work_ += static_cast<std::int64_t>(overlaps_[at(b)].size()) * (1 + part_.obstacles.steps());
    for (const BufferId other : overlaps_[at(b)]) {
        if (rest_[at(other)] >= top) { // also placed ones
            continue;
        }
        if (part_.fixed[at(other)] != free_offset) {
            return false;
        }
        const Bytes now = lowest_offset(part_, other, top);
        offset_changes_.push_back({other, rest_[at(other)], lowest_[at(other)]});
        rest_[at(other)] = now;
        if (lowest_[at(other)] < now) {
            lowest_[at(other)] = now;
            if (!fits(now + part_.bytes[at(other)])) {
                return false;
            }
        }
    }
    return true;
}

bool Search::lift_floors(SectionId first, SectionId last, Bytes offset) {
    work_ += last - first;
    const SectionId hot = hot_;
    if (hot >= first && hot < last && !lift_floor(hot, offset)) {
        return false;
    }
    for (SectionId s = first; s < last; ++s) {
        if (!lift_floor(s, offset)) {
            hot_ = s;
            return false;
        }
    }
    return true;
}

bool Search::lift_floor(SectionId s, Bytes offset) {
    const Bytes old = floor_[at(s)];
    if (lowest_[at(witness_[at(s)])] == old) {
        return old == gone || fits(std::max(old, offset) + left_[at(s)]);
    }
    work_ += static_cast<std::int64_t>(members_[at(s)].size());
    Bytes least = gone;
    BufferId witness = witness_[at(s)];
    for (const BufferId b : members_[at(s)]) {
        if (lowest_[at(b)] < least) {
            least = lowest_[at(b)];
            witness = b;
            if (least == old) {
                break;
            }
        }
    }
    floor_changes_.push_back({s, witness_[at(s)], old});
    floor_[at(s)] = least;
    witness_[at(s)] = witness;
    return least == gone || fits(std::max(least, offset) + left_[at(s)]);
}

// What only the placed buffer held together falls apart; every piece is searched separately.
Search::Outcome Search::search_pieces(const Range& range, BufferId placed, Position after) {
    Range piece = range;
    const SectionId last = part_.last[at(placed)];
    for (SectionId s = part_.first[at(placed)]; s < last; ++s) {
        const bool ends = s + 1 == last;
        if (!ends && cut_[at(s)] > 0) {
            continue;
        }
        if (ends && piece.first == range.first) {
            return search(range, after);
        }
        const auto begin = part_.first.begin();
        piece.last = ends ? range.last : s + 1;
        piece.end = static_cast<BufferId>(std::lower_bound(begin + piece.begin, begin + range.end, piece.last) - begin);
        if (rule_.anew) {
            rank(piece);
        }
        const Outcome outcome = search(piece, {after.offset, rule_.anew ? -1 : after.rank});
        if (outcome != Outcome::found) {
            return outcome;
        }
        piece.first = piece.last;
        piece.begin = piece.end;
    }
    return Outcome::found;
}

void Search::rank(const Range& piece) {
    std::vector<std::pair<std::vector<std::int64_t>, BufferId>> order; // negated: largest first
    for (BufferId b = piece.begin; b < piece.end; ++b) {
        if (placed_[at(b)] == 0) {
            const Bytes room = *std::max_element(left_.begin() + part_.first[at(b)], left_.begin() + part_.last[at(b)]);
            std::vector<std::int64_t> values;
            for (const Key key : rule_.keys) {
                values.push_back(-value_of(part_, b, key, room));
            }
            order.emplace_back(std::move(values), b);
        }
    }
    std::ranges::sort(order);
    for (std::size_t k = 0; k < order.size(); ++k) {
        std::int32_t& own = ranks_[at(order[k].second)];
        rank_changes_.emplace_back(order[k].second, own);
        own = static_cast<std::int32_t>(k);
    }
}

} // namespace memsched::placement
