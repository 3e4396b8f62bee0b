// The output of a simulation: when each step ran, and how many bytes were held at each time.
#pragma once

#include "memsched/simulate/residency.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace memsched {

struct Totals {
    Seconds makespan = 0;
    Bytes peak_memory = 0; // resident included
    Bytes bytes_out = 0, bytes_in = 0;
    Seconds idle = 0;           // makespan less the time that the compute stream runs
    Seconds recompute_time = 0; // of repeated runs
};

// start and end have one entry per step; a free has start == end, the moment its bytes are released.
// memory_bytes[i] bytes (resident included) are held from memory_times[i] until the next entry.
struct Timeline : Totals {
    std::vector<Seconds> start, end;
    std::vector<Seconds> memory_times;
    std::vector<Bytes> memory_bytes;
    std::optional<std::vector<Stay>> blocks; // the buffers, if they are known; not part of the saved form

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

// Sums up what happens while a list of steps is played, in any order of time.
struct TotalsWriter {
    Totals totals;
    std::vector<MemoryEvent> events;
    Seconds busy = 0;

    void step(StepId, Seconds, Seconds end) { totals.makespan = std::max(totals.makespan, end); }
    void memory(Seconds time, StepId k, Bytes change) {
        if (change != 0) {
            events.push_back({time, k, static_cast<std::int32_t>(events.size()), change});
        }
    }
    void moved(Verb verb, Bytes bytes); // refuses what does not fit in 64 bits
    void computed(Seconds time, bool again) {
        busy += time;
        totals.recompute_time += again ? time : 0;
    }
    void finish(Bytes at_start); // at_start: the bytes held before the first step
};

// Makes a timeline of it.
struct TimelineWriter : TotalsWriter {
    explicit TimelineWriter(std::size_t steps) {
        timeline.start.resize(steps);
        timeline.end.resize(steps);
        events.reserve(2 * steps);
    }

    Timeline timeline;

    void step(StepId k, Seconds start, Seconds end) {
        TotalsWriter::step(k, start, end);
        timeline.start[at(k)] = start;
        timeline.end[at(k)] = end;
    }
    void finish(Bytes at_start);
};

} // namespace memsched
