#include "memsched/placement/squeeze.h"

#include "memsched/placement/improve.h"

#include <algorithm>

namespace memsched::placement {
namespace {

constexpr std::size_t most_whole = 2000; // buffers of the largest part that is placed as a whole
constexpr std::size_t least_near = 250;  // initial buffers of a neighbourhood
constexpr std::int64_t passes_near = 50;
constexpr std::int64_t weight_of_rank = 1024;

} // namespace

Squeeze::Squeeze(const Part& part) : part_(part), most_(part.size() <= most_whole ? part.size() : least_near) {
    const Ranks ranks = rank_by(part, {Key::bytes, Key::area});
    for (const std::int32_t rank : ranks) {
        weights_.push_back(weight_of_rank * -static_cast<std::int64_t>(rank));
    }
}

// The highest buffer and those around it move, all others stay.
void Squeeze::gather(BufferId high, const Offsets& offsets, std::mt19937_64& random) {
    const Neighbourhood near = around(part_, high, most_, random);
    order_.clear();
    fitted_.clear();
    places_.clear();
    for (std::size_t b = 0; b < part_.size(); ++b) {
        if (near.moves[b] != 0) {
            order_.push_back(static_cast<BufferId>(b));
        } else if (part_.first[b] < near.last && part_.last[b] > near.first) {
            places_.push_back({offsets[b], offsets[b] + part_.extent[b], part_.first[b], part_.last[b], -1});
        }
    }
    std::ranges::sort(places_, {}, &Place::offset);
}

// First fit in order. Buffers before the first change of the order keep their offsets of the last pass.
Bytes Squeeze::fit() {
    const auto same = std::mismatch(fitted_.begin(), fitted_.end(), order_.begin()).first - fitted_.begin();
    std::erase_if(places_, [&](const Place& place) { return place.turn >= same; });
    fitted_ = order_;
    for (auto turn = static_cast<std::size_t>(same); turn < order_.size(); ++turn) {
        const std::size_t b = at(order_[turn]);
        const SectionId first = part_.first[b], last = part_.last[b];
        const Bytes bytes = part_.bytes[b], alignment = part_.alignment[b];
        Bytes free_from = 0;
        for (const Place& place : places_) { // branch-free, since overlaps are hard to predict
            const bool meets = (place.first < last) & (place.last > first);
            if (meets & (place.offset - free_from >= bytes)) {
                break;
            }
            free_from = std::max(free_from, meets ? align_up(place.top, alignment) : 0);
        }
        offsets_[b] = free_from;
        const auto above = [](Bytes offset, const Place& place) { return offset < place.offset; };
        places_.insert(std::upper_bound(places_.begin(), places_.end(), free_from, above),
                       {free_from, free_from + part_.extent[b], first, last, static_cast<std::int32_t>(turn)});
    }
    Bytes top = 0;
    for (const BufferId b : order_) {
        top = std::max(top, offsets_[at(b)] + part_.bytes[at(b)]);
    }
    return top;
}

// Joslin and Clements (1999). Buffers above the goal gain about 1 % of all ranks, randomised to avoid cycles.
bool Squeeze::run(Bytes goal, std::int64_t passes, std::mt19937_64& random, Offsets& offsets,
                  const Progress& progress) {
    const auto gain = static_cast<std::uint64_t>(weight_of_rank) * (1 + part_.size() / 100);
    offsets_ = offsets;
    Bytes best = 0;
    const auto top_of = [&](const Offsets& of, BufferId b) { return of[at(b)] + part_.bytes[at(b)]; };
    for (std::int64_t pass = 0; pass < passes; ++pass) {
        if (progress.tick(0)) {
            return true;
        }
        if (pass == 0 || best <= goal || (most_ < part_.size() && pass % passes_near == 0)) {
            BufferId high = 0;
            for (BufferId b = 1; b < static_cast<BufferId>(part_.size()); ++b) {
                high = top_of(offsets, b) > top_of(offsets, high) ? b : high;
            }
            const Bytes now = top_of(offsets, high);
            if (now <= goal) {
                return false;
            }
            best = now;
            gather(high, offsets, random);
        }
        std::ranges::sort(order_, [&](BufferId a, BufferId b) {
            return weights_[at(a)] != weights_[at(b)] ? weights_[at(a)] > weights_[at(b)] : a < b;
        });
        const Bytes top = fit();
        for (const BufferId b : order_) {
            if (top < best) {
                offsets[at(b)] = offsets_[at(b)];
            }
            if (top_of(offsets_, b) > goal) {
                weights_[at(b)] += static_cast<std::int64_t>(gain / 2 + random() % (2 * gain));
            }
        }
        best = std::min(best, top);
    }
    return false;
}

} // namespace memsched::placement
