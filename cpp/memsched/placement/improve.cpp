#include "memsched/placement/improve.h"

#include "memsched/placement/search.h"

#include <algorithm>

namespace memsched::placement {
namespace {

constexpr std::size_t most_in_try = 2000; // the search considers all their pairs
constexpr std::int64_t nodes_per_try = 1000;

// Places the moving buffers again, with all others as obstacles, up to the aim.
bool replace(const Part& part, const Neighbourhood& near, Bytes aim, Offsets& offsets, const Progress& progress) {
    std::vector<Buffer> buffers;
    std::vector<BufferId> ids;
    for (std::size_t b = 0; b < part.size(); ++b) {
        const bool moves = near.moves[b] != 0;
        if (part.first[b] >= near.last || part.last[b] <= near.first || (!moves && offsets[b] >= aim)) {
            continue;
        }
        Buffer& buffer = buffers.emplace_back(Buffer{part.first[b], part.last[b], part.bytes[b], 1, offsets[b]});
        if (moves) {
            buffer.alignment = std::max(part.alignment[b], part.unit);
            buffer.offset = free_offset;
        } else {
            buffer.bytes = std::min(buffer.bytes, aim - offsets[b]);
        }
        ids.push_back(static_cast<BufferId>(b));
    }
    Offsets found = offsets;
    for (const Part& piece : parts_of(buffers)) {
        if (piece.fixings.size() == piece.size()) {
            continue;
        }
        if (piece.size() > most_in_try) {
            return false;
        }
        Search search(piece);
        if (search.run({{Key::room, Key::area, Key::width}}, aim, nodes_per_try, progress) != Search::Outcome::found) {
            return false;
        }
        for (std::size_t k = 0; k < piece.size(); ++k) {
            const BufferId b = ids[at(piece.id[k])];
            found[at(b)] = near.moves[at(b)] != 0 ? search.offsets()[k] : found[at(b)];
        }
    }
    offsets = std::move(found);
    return true;
}

} // namespace

Neighbourhood around(const Part& part, BufferId high, std::size_t most, std::mt19937_64& random) {
    const auto width = static_cast<std::uint64_t>(part.last[at(high)] - part.first[at(high)]);
    const auto centre = part.first[at(high)] + static_cast<SectionId>(random() % width);
    std::vector<std::pair<SectionId, BufferId>> near;
    for (std::size_t b = 0; b < part.size(); ++b) {
        if (part.fixed[b] == free_offset && static_cast<BufferId>(b) != high) {
            const SectionId away = std::max({part.first[b] - centre, centre - part.last[b] + 1, 0});
            near.emplace_back(away, static_cast<BufferId>(b));
        }
    }
    std::shuffle(near.begin(), near.end(), random);
    const std::size_t count = std::min(most, near.size());
    const auto end = near.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(near.begin(), end, near.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    Neighbourhood found{std::vector<std::uint8_t>(part.size(), 0), part.first[at(high)], part.last[at(high)]};
    found.moves[at(high)] = 1;
    for (auto one = near.begin(); one != end; ++one) {
        found.moves[at(one->second)] = 1;
        found.first = std::min(found.first, part.first[at(one->second)]);
        found.last = std::max(found.last, part.last[at(one->second)]);
    }
    return found;
}

bool improve_placement(const Part& part, Bytes goal, std::int64_t tries, std::mt19937_64& random, Offsets& offsets,
                       const Progress& progress) {
    Offsets trial = offsets;
    Bytes best = height_of(part, offsets), step = std::max<Bytes>(1, (best - goal) / 4), aim = goal;
    std::size_t most = 12;
    int failures = 0;
    for (std::int64_t k = 0; k < tries && best > goal; ++k) {
        if (progress.tick(0)) {
            return true;
        }
        aim = std::max(goal, best - step);
        std::vector<BufferId> high;
        for (std::size_t b = 0; b < part.size(); ++b) {
            if (trial[b] + part.bytes[b] > aim) {
                high.push_back(static_cast<BufferId>(b));
            }
        }
        const BufferId one = high[random() % high.size()];
        if (replace(part, around(part, one, most, random), aim, trial, progress)) {
            failures = 0;
            most = std::max<std::size_t>(12, most - 2);
        } else if (++failures % 4 == 0) {
            most = most < 60 ? most + 6 : 12;
            step = failures % 16 == 0 ? std::max<Bytes>(1, step / 2) : step;
        }
        const Bytes now = height_of(part, trial);
        if (now < best) {
            best = now;
            offsets = trial;
            step *= 2;
        }
    }
    return false;
}

} // namespace memsched::placement
