#include "memsched/simulate/simulate.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace memsched {

void check_repeated(const Graph& graph, const Schedule& schedule) {
    if (graph.persistent() && (schedule.rounds.size() > 1 || schedule.rounds[0].times > 1)) {
        throw ScheduleError("the plan has several rounds, but its persistent tensors are updated in each; give one");
    }
}

Timeline simulate(const Graph& graph, const Schedule& schedule, const Device& device, const Progress& progress) {
    check_repeated(graph, schedule);
    Timeline timeline = simulate(graph, resolve(graph, schedule), device, schedule.budget, progress);
    const auto times = static_cast<double>(schedule.rounds[0].times);
    timeline.makespan *= times;
    timeline.idle *= times;
    timeline.recompute_time *= times;
    if (!std::isfinite(timeline.makespan)) {
        throw ScheduleError("so many rounds overflow the makespan; it is not finite");
    }
    if (__builtin_mul_overflow(timeline.bytes_out, schedule.rounds[0].times, &timeline.bytes_out) ||
        __builtin_mul_overflow(timeline.bytes_in, schedule.rounds[0].times, &timeline.bytes_in)) {
        throw ScheduleError("so many rounds move more than 2^63 - 1 bytes; split the plan");
    }
    return timeline;
}

Timeline simulate_rounds(const std::map<std::int64_t, const Graph*>& graphs, std::int64_t full,
                         const Schedule& schedule, const Device& device, const Progress& progress) {
    if (!graphs.empty()) {
        check_repeated(*graphs.begin()->second, schedule);
    }
    std::map<std::int64_t, std::int64_t> often; // by batch
    std::int64_t done = 0, part = 0;
    bool beyond = false;
    for (const Round& round : schedule.rounds) {
        beyond = beyond || __builtin_mul_overflow(round.batch, round.times, &part) ||
                 __builtin_add_overflow(done, part, &done);
        often[round.batch] += beyond ? 0 : round.times;
    }
    if (beyond || done != full) {
        const std::string found = beyond ? "more than 2^63 - 1" : std::to_string(done);
        throw ScheduleError("the rounds process " + found + " of a batch of " + std::to_string(full) +
                            "; give rounds that add up to the batch");
    }
    Timeline sum;
    for (const auto& [batch, times] : often) {
        Schedule alone = schedule;
        alone.rounds = {{batch, times}};
        Timeline one = simulate(*graphs.at(batch), alone, device, progress);
        one.makespan += sum.makespan;
        one.idle += sum.idle;
        one.recompute_time += sum.recompute_time;
        one.peak_memory = std::max(one.peak_memory, sum.peak_memory);
        if (!std::isfinite(one.makespan) || __builtin_add_overflow(one.bytes_out, sum.bytes_out, &one.bytes_out) ||
            __builtin_add_overflow(one.bytes_in, sum.bytes_in, &one.bytes_in)) {
            throw ScheduleError("the times or bytes of so many rounds overflow; split the plan");
        }
        if (batch != schedule.rounds[0].batch) { // the steps shown are those of the first round
            one.start = std::move(sum.start);
            one.end = std::move(sum.end);
            one.memory_times = std::move(sum.memory_times);
            one.memory_bytes = std::move(sum.memory_bytes);
        }
        sum = std::move(one);
    }
    sum.blocks.reset();
    return sum;
}

} // namespace memsched
