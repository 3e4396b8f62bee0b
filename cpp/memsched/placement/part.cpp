#include "memsched/placement/part.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace memsched::placement {
namespace {

struct Interval {
    BufferId id;
    SectionId first, last;
};

// Stretches of time in which something is alive throughout; each counts its sections from 0.
std::vector<std::vector<Interval>> stretches_of(std::span<const Buffer> buffers) {
    std::vector<std::vector<Interval>> found;
    std::vector<std::size_t> place(buffers.size());
    std::size_t alive = 0;
    SectionId section = 0;
    bool open = false; // someone has started since the last section was closed
    for (const auto& [tick, event] : events(buffers)) {
        if (event >= 0) {
            if (alive == 0) {
                found.emplace_back();
                section = 0;
            }
            place[at(event)] = found.back().size();
            found.back().push_back({event, section, section});
            open = true;
            ++alive;
        } else {
            section += open ? 1 : 0;
            open = false;
            found.back()[place[at(~event)]].last = section;
            --alive;
        }
    }
    return found;
}

void add_columns(Part& part, std::span<const Buffer> buffers, const std::vector<Interval>& intervals) {
    for (const Interval& interval : intervals) {
        const Buffer& buffer = buffers[at(interval.id)];
        part.id.push_back(interval.id);
        part.first.push_back(interval.first);
        part.last.push_back(interval.last);
        part.bytes.push_back(buffer.bytes);
        part.alignment.push_back(buffer.alignment);
        part.fixed.push_back(buffer.offset);
        part.length.push_back(buffer.end - buffer.start);
        if (is_fixed(buffer)) {
            part.fixings.push_back(static_cast<BufferId>(part.id.size() - 1));
        }
    }
    std::ranges::stable_sort(part.fixings, {}, [&](BufferId b) { return part.fixed[at(b)]; });
}

void add_obstacles(Part& part) {
    std::vector<Obstacle> all;
    for (const BufferId f : part.fixings) {
        const SectionId first = part.first[at(f)], last = part.last[at(f)];
        const Bytes offset = part.fixed[at(f)], top = offset + part.extent[at(f)];
        if (!all.empty() && all.back().first == first && all.back().last == last && all.back().top == offset) {
            all.back().top = top;
        } else {
            all.push_back({first, last, offset, top});
        }
    }
    part.obstacles = Obstacles(all, part.sections());
}

void add_sections(Part& part) {
    part.unit = 0;
    for (std::size_t b = 0; b < part.size(); ++b) {
        part.unit = std::gcd(part.unit, part.fixed[b] == free_offset ? part.alignment[b] : part.fixed[b]);
    }
    part.unit = std::max<Bytes>(part.unit, 1);
    SectionId sections = 0;
    for (std::size_t b = 0; b < part.size(); ++b) {
        part.extent.push_back(align_up(part.bytes[b], part.unit));
        part.alignment[b] = part.alignment[b] == part.unit ? 1 : part.alignment[b];
        sections = std::max(sections, part.last[b]);
    }
    std::vector<Bytes> change(at(sections) + 1, 0);
    for (std::size_t b = 0; b < part.size(); ++b) {
        change[at(part.first[b])] += part.extent[b];
        change[at(part.last[b])] -= part.extent[b];
        part.least = std::max(part.least, part.fixed[b] == free_offset ? part.bytes[b] : part.fixed[b] + part.bytes[b]);
    }
    part.room.resize(at(sections));
    std::partial_sum(change.begin(), change.end() - 1, part.room.begin());
    std::vector<Bytes> more(part.size());
    for (std::size_t b = 0; b < part.size(); ++b) {
        more[b] = part.extent[b] - part.bytes[b];
    }
    part.slack = most_by_section(part, more);
    for (std::size_t s = 0; s < part.sections(); ++s) {
        part.least = std::max(part.least, part.room[s] - part.slack[s]);
    }
}

} // namespace

std::vector<Part> parts_of(std::span<const Buffer> buffers) {
    std::vector<Part> parts;
    for (const std::vector<Interval>& intervals : stretches_of(buffers)) {
        Part& part = parts.emplace_back();
        add_columns(part, buffers, intervals);
        add_sections(part);
        add_obstacles(part);
    }
    return parts;
}

std::vector<Bytes> most_by_section(const Part& part, const std::vector<Bytes>& values) {
    std::vector<Bytes> most(part.sections(), 0);
    std::priority_queue<std::pair<Bytes, SectionId>> alive; // and where they end
    std::size_t b = 0;
    for (std::size_t s = 0; s < most.size(); ++s) {
        for (; b < part.size() && part.first[b] <= static_cast<SectionId>(s); ++b) {
            if (values[b] > 0) {
                alive.emplace(values[b], part.last[b]);
            }
        }
        while (!alive.empty() && alive.top().second <= static_cast<SectionId>(s)) {
            alive.pop();
        }
        most[s] = alive.empty() ? 0 : alive.top().first;
    }
    return most;
}

std::int64_t count_members(const Part& part) {
    std::int64_t count = 0;
    for (std::size_t b = 0; b < part.size(); ++b) {
        count += part.last[b] - part.first[b];
    }
    return count;
}

} // namespace memsched::placement
