#include "memsched/timeline.h"

#include <algorithm>
#include <tuple>

namespace memsched {

// All that is saved is compared.
bool Timeline::operator==(const Timeline& other) const {
    const auto saved = [](const Timeline& t) {
        return std::tie(t.start, t.end, t.makespan, t.peak_memory, t.memory_times, t.memory_bytes, t.bytes_out,
                        t.bytes_in, t.idle, t.recompute_time);
    };
    return saved(*this) == saved(other);
}

void Recorder::finish(Bytes at_start) {
    std::stable_sort(events.begin(), events.end(), [](const MemoryEvent& a, const MemoryEvent& b) {
        return a.time != b.time ? a.time < b.time : a.step < b.step;
    });
    Bytes held = at_start;
    timeline.peak_memory = held;
    timeline.memory_times = {0};
    timeline.memory_bytes = {held};
    for (const MemoryEvent& event : events) {
        held += event.change;
        timeline.peak_memory = std::max(timeline.peak_memory, held);
        timeline.memory_times.push_back(event.time);
        timeline.memory_bytes.push_back(held);
    }
    for (const Seconds end : timeline.end) {
        timeline.makespan = std::max(timeline.makespan, end);
    }
    timeline.idle = std::max(0.0, timeline.makespan - busy);
}

} // namespace memsched
