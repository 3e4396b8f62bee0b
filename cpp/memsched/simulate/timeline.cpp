#include "memsched/simulate/timeline.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace memsched {

// Compares all saved fields.
bool Timeline::operator==(const Timeline& other) const {
    const auto saved = [](const Timeline& t) {
        return std::tie(t.start, t.end, t.makespan, t.peak_memory, t.memory_times, t.memory_bytes, t.bytes_out,
                        t.bytes_in, t.idle, t.recompute_time);
    };
    return saved(*this) == saved(other);
}

void check_timeline(const Timeline& t) {
    const auto refuse = [](const std::string& what, const std::string& wanted) {
        throw std::invalid_argument("timeline: " + what + "; " + wanted);
    };
    if (t.start.size() != t.end.size()) {
        refuse("start has " + std::to_string(t.start.size()) + " entries and end " + std::to_string(t.end.size()),
               "give both one per step");
    }
    if (t.memory_times.size() != t.memory_bytes.size()) {
        refuse("memory has " + std::to_string(t.memory_times.size()) + " times and " +
                   std::to_string(t.memory_bytes.size()) + " bytes",
               "give as many of both");
    }
    const auto check = [&](const char* what, Bytes bytes) {
        if (bytes < 0) {
            refuse(what + (" is " + std::to_string(bytes)), "bytes must be >= 0");
        }
    };
    check("peak_memory", t.peak_memory);
    check("bytes_out", t.bytes_out);
    check("bytes_in", t.bytes_in);
    for (const Bytes bytes : t.memory_bytes) {
        check("memory bytes", bytes);
    }
}

void TotalsWriter::moved(Verb verb, Bytes bytes) {
    Bytes& sum = verb == Verb::offload ? totals.bytes_out : totals.bytes_in;
    if (__builtin_add_overflow(sum, bytes, &sum)) {
        throw ScheduleError("the plan moves more than 2^63 - 1 bytes in one direction; split it");
    }
}

namespace {

// Most events come in their order; those that do not, for they wait for the link, are sorted alone.
void sort_events(std::vector<MemoryEvent>& events) {
    std::vector<MemoryEvent> ahead; // of some later one
    std::size_t left = events.size();
    for (std::size_t k = events.size(); k-- > 0;) {
        if (left == events.size() || events[k] < events[left]) {
            events[--left] = events[k];
        } else {
            ahead.push_back(events[k]);
        }
    }
    std::sort(ahead.begin(), ahead.end());
    for (std::size_t to = 0, next = 0; next < ahead.size(); ++to) { // `to` never reaches `left`
        const bool in_order = left < events.size() && events[left] < ahead[next];
        events[to] = in_order ? events[left++] : ahead[next++];
    }
}

} // namespace

void TotalsWriter::finish(Bytes at_start) {
    sort_events(events);
    Bytes held = at_start;
    totals.peak_memory = held;
    for (const MemoryEvent& event : events) {
        held += event.change;
        totals.peak_memory = std::max(totals.peak_memory, held);
    }
    totals.idle = std::max(0.0, totals.makespan - busy);
}

void TimelineWriter::finish(Bytes at_start) {
    TotalsWriter::finish(at_start);
    static_cast<Totals&>(timeline) = totals;
    Bytes held = at_start;
    timeline.memory_times = {0};
    timeline.memory_bytes = {held};
    timeline.memory_times.reserve(events.size() + 1);
    timeline.memory_bytes.reserve(events.size() + 1);
    for (const MemoryEvent& event : events) {
        held += event.change;
        timeline.memory_times.push_back(event.time);
        timeline.memory_bytes.push_back(held);
    }
}

} // namespace memsched
