#include "instances.h"
#include "memsched/placement/improve.h"
#include "memsched/placement/obstacles.h"
#include "memsched/placement/search.h"
#include "memsched/placement/squeeze.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

using namespace memsched;
using namespace memsched::placement;
using namespace memsched::testing;

namespace {

const Progress no_limit;
Pace unhurried(no_limit);

std::vector<Buffer> random_buffers(std::size_t count, std::uint64_t seed, bool awkward) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t most) { return static_cast<std::int64_t>(random() % most); };
    std::vector<Buffer> buffers;
    for (std::size_t k = 0; k < count; ++k) {
        const std::int64_t start = below(40);
        Buffer buffer{start, start + 1 + below(12), 1 + below(50)};
        if (awkward) {
            buffer.alignment = std::int64_t{1} << below(4);
            if (k % 7 == 0) {
                buffer.alignment = 8;
                buffer.offset = 64 * static_cast<Bytes>(k);
            }
        }
        buffers.push_back(buffer);
    }
    check_buffers(buffers);
    return buffers;
}

bool legal(const Part& part, const Offsets& offsets) {
    for (std::size_t a = 0; a < part.size(); ++a) {
        if (offsets[a] % part.alignment[a] != 0 || offsets[a] % part.unit != 0 ||
            (part.fixed[a] != free_offset && offsets[a] != part.fixed[a])) {
            return false;
        }
        for (std::size_t b = 0; b < a; ++b) {
            const bool together = part.first[a] < part.last[b] && part.first[b] < part.last[a];
            if (together && offsets[a] < offsets[b] + part.bytes[b] && offsets[b] < offsets[a] + part.bytes[a]) {
                return false;
            }
        }
    }
    return true;
}

} // namespace

TEST_CASE("sections are the largest sets of buffers that are alive together") {
    const std::vector<Buffer> buffers = {{0, 10, 1},  {2, 4, 2}, {3, 6, 3}, {6, 8, 4},
                                         {12, 14, 5}, {5, 5, 9}, {0, 9, 0}};
    const std::vector<Part> parts = parts_of(buffers);
    REQUIRE(parts.size() == 2);
    CHECK(parts[0].id == std::vector<BufferId>{0, 1, 2, 3});
    CHECK(parts[0].first == std::vector<SectionId>{0, 0, 0, 1});
    CHECK(parts[0].last == std::vector<SectionId>{2, 1, 1, 2});
    CHECK(parts[0].room == std::vector<Bytes>{6, 5});
    CHECK(parts[0].least == load(buffers));
    CHECK(parts[1].id == std::vector<BufferId>{4});
}

TEST_CASE("a bound counts padding, but not above the topmost buffer") {
    const std::vector<Buffer> buffers = {{0, 1, 5, 64}, {0, 1, 60, 64}, {0, 1, 1, 64}};
    CHECK(parts_of(buffers)[0].least == 129);
}

TEST_CASE("rules of thumb are legal") {
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        for (const Part& part : parts_of(random_buffers(5 + seed, seed, seed % 2 == 1))) {
            for (const Ranks& ranks : {rank_by(part, {Key::area}), rank_by(part, {Key::first}), pyramid_ranks(part)}) {
                CHECK(legal(part, skyline(part, ranks, unhurried)));
                CHECK(legal(part, fit_in_order(part, ranks, false, unhurried)));
                CHECK(legal(part, fit_in_order(part, ranks, true, unhurried)));
                CHECK(legal(part, pile(part)));
                CHECK(height_of(part, skyline(part, ranks, unhurried)) >= part.least);
            }
        }
    }
}

TEST_CASE("ranks by room go by the fullest moment of a lifetime") {
    const std::vector<Buffer> buffers = {{0, 2, 6}, {0, 4, 3}, {2, 4, 7}, {3, 6, 4}}; // 9 bytes at 0, 14 at 3
    const std::vector<Part> parts = parts_of(buffers);
    REQUIRE(parts.size() == 1);
    CHECK(rank_by(parts[0], {Key::room, Key::bytes}) == Ranks{3, 2, 0, 1});
}

TEST_CASE("lifetimes that nest make a pyramid, and the others follow by size") {
    const std::vector<Buffer> buffers = {{0, 2, 9}, {0, 10, 1}, {2, 8, 2}, {4, 5, 8}, {5, 7, 4}, {8, 10, 3}};
    const std::vector<Part> parts = parts_of(buffers);
    REQUIRE(parts.size() == 1);
    CHECK(pyramid_ranks(parts[0]) == Ranks{3, 0, 1, 4, 2, 5});
}

TEST_CASE("the search is legal, keeps its capacity, and knows when a larger one is worth a try") {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        for (const Part& part : parts_of(random_buffers(4 + seed % 12, seed, seed % 2 == 1))) {
            Search search(part);
            Bytes capacity = part.least - 1;
            while (search.run({{Key::room, Key::area}, seed % 3 == 0}, capacity, 1 << 20, {}) !=
                   Search::Outcome::found) {
                REQUIRE(search.next_capacity() > capacity);
                capacity = search.next_capacity();
            }
            CHECK(legal(part, search.offsets()));
            CHECK(height_of(part, search.offsets()) == capacity);
            CHECK(capacity <= height_of(part, skyline(part, rank_by(part, {Key::area}), unhurried)));
        }
    }
}

TEST_CASE("a search that is told to stop stops, and can be run again") {
    const std::vector<Buffer> buffers = random_buffers(60, 3, false);
    const Part part = parts_of(buffers)[0];
    Search search(part);
    CHECK(search.run({{Key::area}}, part.least, 3, {}) == Search::Outcome::stopped);
    CHECK(search.run({{Key::area}}, 60 * 51, 1 << 20, {}) == Search::Outcome::found);
    CHECK(search.run({{Key::area}}, part.least - 1, 1 << 20, {}) == Search::Outcome::none);
}

TEST_CASE("a rule of thumb that is told to stop says so, but not before its patience ends") {
    const Part part = parts_of(random_buffers(3000, 3, true))[0];
    std::int64_t ticks = 0;
    const Progress stop{[&](double) { return ++ticks > 0; }};
    Pace hasty(stop), patient(stop, std::int64_t{1} << 40);
    CHECK_THROWS_AS(static_cast<void>(skyline(part, rank_by(part, {Key::area}), hasty)), Stopped);
    CHECK(legal(part, skyline(part, rank_by(part, {Key::area}), patient)));
    CHECK(ticks > 1);
}

TEST_CASE("the slack of a section is the most that a buffer alive in it has") {
    const std::vector<Buffer> buffers = {{0, 4, 5, 8}, {1, 2, 7, 8}, {2, 6, 1, 8}, {5, 6, 4, 8}};
    CHECK(parts_of(buffers)[0].slack == std::vector<Bytes>{3, 7, 7});
}

TEST_CASE("neighbourhoods never raise a placement") {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        for (const Part& part : parts_of(random_buffers(60, seed, seed % 2 == 1))) {
            std::mt19937_64 random(seed);
            Offsets offsets = skyline(part, rank_by(part, {Key::first}), unhurried);
            const Bytes before = height_of(part, offsets);
            CHECK_FALSE(improve_placement(part, part.least, 60, random, offsets, {}));
            CHECK(legal(part, offsets));
            CHECK(height_of(part, offsets) <= before);
        }
    }
}

TEST_CASE("squeezing never raises a placement, placed as a whole or by neighbourhoods") {
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        for (const Part& part : parts_of(random_buffers(seed == 0 ? 2300 : 60, seed, seed % 2 == 1))) {
            std::mt19937_64 random(seed);
            Squeeze squeeze(part);
            Offsets offsets = skyline(part, rank_by(part, {Key::first}), unhurried);
            const Bytes before = height_of(part, offsets);
            CHECK_FALSE(squeeze.run(part.least, 60, random, offsets, {}));
            CHECK(legal(part, offsets));
            CHECK(height_of(part, offsets) <= before);
        }
    }
}

TEST_CASE("what lies on top of the highest fixed buffer leaves no 62 bits") {
    constexpr Bytes half = Bytes{1} << 61;
    for (const Bytes less : {Bytes{0}, Bytes{1}}) {
        const std::vector<Buffer> buffers = {{0, 1, half - 1 - less}, {0, 1, 1, 1, half - 1}, {0, 1, 0, 1, 0}};
        if (less == 0) {
            CHECK_THROWS_AS(check_buffers(buffers), std::invalid_argument);
        } else {
            CHECK_NOTHROW(check_buffers(buffers));
        }
    }
}

TEST_CASE("fixed buffers that collide are named") {
    const std::vector<Buffer> buffers = {{0, 4, 4, 1, 0}, {4, 5, 4, 1, 0}, {3, 5, 4, 1, 3}};
    CHECK_THROWS_WITH_AS(check_buffers(buffers),
                         "buffers[0] and buffers[2] are alive together and their fixed offsets make them overlap; "
                         "change one",
                         std::invalid_argument);
}

TEST_CASE("the lowest free offset among obstacles is the one found by trying all") {
    Dice dice(11);
    for (int round = 0; round < 400; ++round) {
        const SectionId sections = dice.roll(1, round % 4 == 0 ? 900 : 40);
        std::vector<Obstacle> all;
        for (int k = dice.roll(0, round % 4 == 0 ? 200 : 12); k > 0; --k) {
            const SectionId first = dice.roll(0, sections - 1);
            const Bytes offset = dice.roll(0, 60);
            all.push_back(
                {first, std::min(sections, first + dice.roll(1, dice.roll(1, 60))), offset, offset + dice.roll(1, 9)});
        }
        std::ranges::stable_sort(all, {}, &Obstacle::offset);
        const Obstacles obstacles(all, at(sections));
        for (int ask = 0; ask < 20; ++ask) {
            const SectionId first = dice.roll(0, sections - 1), last = dice.roll(first + 1, sections);
            const Bytes bytes = dice.roll(1, 12), alignment = dice.roll(1, 4), floor = dice.roll(0, 20);
            Bytes least = align_up(floor, alignment);
            while (std::ranges::any_of(all, [&](const Obstacle& one) {
                return one.first < last && one.last > first && one.offset < least + bytes && one.top > least;
            })) {
                least += alignment;
            }
            CHECK(obstacles.lowest(first, last, bytes, alignment, floor) == least);
        }
    }
}
