// The output of a simulation: when each step ran, and how many bytes were held at each time.
#pragma once

#include "memsched/simulate/residency.h"

#include <vector>

namespace memsched {

// start and end have one entry per step; a free has start == end, the moment its bytes are released.
// memory_bytes[i] bytes (resident included) are held from memory_times[i] until the next entry.
struct Timeline {
    std::vector<Seconds> start, end;
    Seconds makespan = 0;
    Bytes peak_memory = 0; // resident included
    std::vector<Seconds> memory_times;
    std::vector<Bytes> memory_bytes;
    Bytes bytes_out = 0, bytes_in = 0;
    Seconds idle = 0;           // makespan less the time that the compute stream runs
    Seconds recompute_time = 0; // of repeated runs
    std::vector<Stay> blocks;   // the buffers; not part of the saved form

    bool operator==(const Timeline& other) const;
};

// Refuses an impossible timeline: start and end, or times and bytes, of different lengths, or bytes < 0.
void check_timeline(const Timeline& timeline);

// A change of the bytes held.
struct MemoryEvent {
    Seconds time;
    StepId step;        // events at the same instant act in list order,
    std::int32_t place; // and those of a step in the order in which they were noted
    Bytes change;

    bool operator<(const MemoryEvent& other) const {
        return time != other.time ? time < other.time : step != other.step ? step < other.step : place < other.place;
    }
};

// Notes what happens while a list of steps is played, in any order of time, and makes a timeline of it.
struct TimelineWriter {
    Timeline timeline;
    std::vector<MemoryEvent> events;
    Seconds busy = 0;

    void step(StepId k, Seconds start, Seconds end) {
        timeline.start[at(k)] = start;
        timeline.end[at(k)] = end;
    }
    void memory(Seconds time, StepId k, Bytes change) {
        if (change != 0) {
            events.push_back({time, k, static_cast<std::int32_t>(events.size()), change});
        }
    }
    void moved(Verb verb, Bytes bytes); // refuses what does not fit in 64 bits
    void computed(Seconds time, bool again) {
        busy += time;
        timeline.recompute_time += again ? time : 0;
    }
    void finish(Bytes at_start); // at_start: the bytes held before the first step
};

} // namespace memsched
