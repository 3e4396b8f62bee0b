// A list of steps that is repeated without end: what each step waits for, in its own repetition or the one before.
#pragma once

#include "memsched/model/device.h"
#include "memsched/model/schedule.h"
#include "memsched/support/progress.h"
#include "memsched/support/rows.h"

#include <vector>

namespace memsched {

struct Awaited {
    StepId step = 0;
    bool before = false; // of the previous repetition
    bool start = false;  // its start, instead of its end
    Bytes bytes = 0;     // that come back then
};

struct RepeatedStep {
    Seconds time = 0;
    Bytes takes = 0, gives = 0; // bytes that it allocates when it starts, and releases when it ends
    Bytes may_lack = 0;         // of those in `returns`
};

struct RepeatedSteps {
    std::size_t size() const { return each.size(); }

    std::vector<RepeatedStep> each;
    // By step: rules E1 to E5; and E7: of these bytes, some may lack; those that come back in any case are left out.
    Rows<Awaited> waits, returns;
};

// list: legal on that graph and device. capacity: bytes, without resident. Addresses are not looked at.
RepeatedSteps repeated_steps(const Graph& graph, const StepList& list, const Device& device, Bytes capacity,
                             Pace& pace);

// Bytes that are on the device when the list begins, without resident.
Bytes bytes_at_border(const Graph& graph, const StepList& list);

} // namespace memsched
