#include "memsched/placement/buffers.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace memsched::placement {
namespace {

constexpr Bytes most_bytes = Bytes{1} << 62;

std::string name(std::size_t id) { return "buffers[" + std::to_string(id) + "]"; }

[[noreturn]] void refuse(std::size_t id, const std::string& field, std::int64_t value, const std::string& remedy) {
    throw std::invalid_argument(name(id) + ": " + field + " is " + std::to_string(value) + "; it must be " + remedy);
}

void check_fields(std::span<const Buffer> buffers) {
    for (std::size_t id = 0; id < buffers.size(); ++id) {
        const Buffer& buffer = buffers[id];
        if (buffer.end < buffer.start) {
            refuse(id, "end", buffer.end, "at least its start, " + std::to_string(buffer.start));
        }
        if (buffer.bytes < 0) {
            refuse(id, "size", buffer.bytes, "a number of bytes >= 0");
        }
        if (buffer.alignment < 1) {
            refuse(id, "alignment", buffer.alignment, "a number of bytes >= 1");
        }
        if (is_fixed(buffer) && (buffer.offset < 0 || buffer.offset % buffer.alignment != 0)) {
            refuse(id, "offset", buffer.offset,
                   ">= 0 and a multiple of its alignment, " + std::to_string(buffer.alignment));
        }
    }
}

void check_sums(std::span<const Buffer> buffers) {
    Bytes sum = 0, top = 0;
    const auto add = [](Bytes& to, Bytes bytes) {
        if (bytes >= most_bytes - to) {
            throw std::invalid_argument("the sizes of the buffers, with their padding and on top of those at fixed "
                                        "offsets, add up to 2^62 bytes or more; use smaller sizes or a coarser unit");
        }
        to += bytes;
    };
    for (const Buffer& buffer : buffers) {
        add(sum, buffer.bytes);
        add(sum, buffer.alignment - 1);
        if (is_fixed(buffer)) {
            Bytes end = buffer.offset;
            add(end, buffer.bytes);
            top = std::max(top, end);
        }
    }
    add(sum, top);
}

void check_collisions(std::span<const Buffer> buffers) {
    std::map<Bytes, BufferId> alive; // fixed ones by offset
    for (const auto& [tick, event] : events(buffers)) {
        const BufferId id = std::max(event, ~event);
        const Buffer& buffer = buffers[at(id)];
        if (!is_fixed(buffer)) {
            continue;
        }
        if (event < 0) {
            alive.erase(buffer.offset);
            continue;
        }
        const auto above = alive.lower_bound(buffer.offset);
        const bool below = above != alive.begin() &&
                           std::prev(above)->first + buffers[at(std::prev(above)->second)].bytes > buffer.offset;
        if (below || (above != alive.end() && above->first < buffer.offset + buffer.bytes)) {
            const BufferId other = below ? std::prev(above)->second : above->second;
            throw std::invalid_argument(name(at(std::min(id, other))) + " and " + name(at(std::max(id, other))) +
                                        " are alive together and their fixed offsets make them overlap; change one");
        }
        alive.emplace(buffer.offset, id);
    }
}

} // namespace

void check_buffers(std::span<const Buffer> buffers) {
    check_fields(buffers);
    check_sums(buffers);
    check_collisions(buffers);
}

std::vector<std::pair<std::int64_t, BufferId>> events(std::span<const Buffer> buffers) {
    std::vector<std::pair<std::int64_t, BufferId>> found;
    for (std::size_t id = 0; id < buffers.size(); ++id) {
        if (occupies(buffers[id])) {
            found.emplace_back(buffers[id].start, static_cast<BufferId>(id));
            found.emplace_back(buffers[id].end, ~static_cast<BufferId>(id));
        }
    }
    std::ranges::sort(found);
    return found;
}

Bytes load(std::span<const Buffer> buffers) {
    Bytes now = 0, most = 0;
    for (const auto& [tick, event] : events(buffers)) {
        now += event < 0 ? -buffers[at(~event)].bytes : buffers[at(event)].bytes;
        most = std::max(most, now);
    }
    return most;
}

} // namespace memsched::placement
