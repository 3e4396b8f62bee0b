#include "memsched/timeline.h"

#include <algorithm>

namespace memsched {

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
