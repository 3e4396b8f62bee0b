#include "memsched/simulate/unroll.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <stdexcept>

namespace memsched {
namespace {

std::string instance_name(const std::string& name, int count) {
    return count == 1 ? name : name + "#" + std::to_string(count);
}

[[noreturn]] void refuse(const Graph& graph, const std::string& op, TensorId tensor, std::size_t step) {
    throw ScheduleError("run " + op + " reads '" + graph.tensor(tensor).name + "', which no run has written",
                        static_cast<StepId>(step));
}

} // namespace

Unrolled unroll(const Graph& graph, std::span<const Run> runs, const Progress& progress) {
    Pace pace(progress);
    GraphData data{graph.name(), graph.batch(), graph.resident(), {}, {}};
    std::vector<TensorId> origin;
    std::vector<TensorId> current(graph.tensors().size(), -1); // the current instance of each tensor
    std::vector<int> written(graph.tensors().size(), 0), run(graph.ops().size(), 0);
    Bytes bytes = 0, scratch = 0; // what all runs together write and take, as what a graph has is limited
    Seconds seconds = 0;
    const auto check = [&] {
        if (bytes > exact_bytes - scratch || seconds > most_seconds) {
            const bool writes = seconds <= most_seconds;
            throw std::length_error(
                "the plan runs ops again so often that all runs together " +
                std::string(writes ? "write more than 2^53 bytes" : "take more than 1e302 seconds") +
                "; use a coarser unit");
        }
    };
    const auto instance = [&](TensorId t) {
        const auto id = at(t);
        bytes += graph.tensor(t).bytes;
        check();
        current[id] = static_cast<TensorId>(data.tensors.size());
        data.tensors.push_back(graph.tensor(t));
        data.tensors.back().name = instance_name(graph.tensor(t).name, ++written[id]);
        origin.push_back(t);
        return current[id];
    };
    for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
        if (graph.writer(static_cast<TensorId>(t)) < 0) {
            instance(static_cast<TensorId>(t));
        }
    }
    bool backward = false;
    for (const Run& step : runs) {
        pace.spend(Pace::named);
        Op op = graph.op(step.op);
        const bool skips = step.skip && !op.tape.empty();
        backward |= op.phase == Phase::backward;
        op.phase = backward ? Phase::backward : Phase::forward;
        op.name = instance_name(op.name, ++run[at(step.op)]);
        for (TensorId& t : op.reads) {
            const TensorId found = current[at(t)];
            if (found < 0) {
                refuse(graph, op.name, t, data.ops.size());
            }
            t = found;
        }
        std::vector<TensorId> writes;
        for (const TensorId t : op.writes) {
            if (!skips || !graph.taped(t)) {
                writes.push_back(instance(t));
            }
        }
        op.writes = std::move(writes);
        if (skips && op.skip_workspace) {
            for (Choice& choice : op.choices) {
                choice.workspace = *op.skip_workspace;
            }
        }
        op.tape.clear();
        op.skip_workspace.reset();
        scratch = std::max(scratch, std::ranges::max(op.choices, {}, &Choice::workspace).workspace);
        seconds += std::ranges::max(op.choices, {}, &Choice::time).time;
        check();
        data.ops.push_back(std::move(op));
    }
    return {Graph(std::move(data), progress), {runs.begin(), runs.end()}, std::move(origin)};
}

Bytes peak_of_runs(const Graph& graph, std::span<const Run> runs) {
    constexpr std::int64_t none = -1;
    struct Instance {
        std::int64_t birth = none, last_use = none; // of the current instance, as indices of runs
    };
    std::vector<Instance> stays(graph.tensors().size());
    std::vector<Bytes> change(runs.size() + 1, 0); // of the bytes held during each run
    const auto end = [&](std::size_t t) {
        const Bytes bytes = graph.tensors()[t].bytes;
        change[static_cast<std::size_t>(stays[t].birth)] += bytes;
        change[stays[t].last_use == none ? runs.size() : static_cast<std::size_t>(stays[t].last_use) + 1] -= bytes;
    };
    for (std::size_t t = 0; t < stays.size(); ++t) {
        stays[t].birth = graph.writer(static_cast<TensorId>(t)) < 0 ? 0 : none;
    }
    for (std::size_t k = 0; k < runs.size(); ++k) {
        const Op& op = graph.op(runs[k].op);
        for (const TensorId t : op.reads) {
            Instance& stay = stays[at(t)];
            if (stay.birth == none) {
                refuse(graph, op.name, t, k);
            }
            stay.last_use = static_cast<std::int64_t>(k);
        }
        const bool skips = runs[k].skip && !op.tape.empty();
        for (const TensorId t : op.writes) {
            const auto id = at(t);
            if (skips && graph.taped(t)) {
                continue;
            }
            if (stays[id].birth != none) {
                end(id);
            }
            stays[id] = {static_cast<std::int64_t>(k), none};
        }
    }
    for (std::size_t t = 0; t < stays.size(); ++t) {
        if (stays[t].birth != none) {
            end(t);
        }
    }
    Bytes held = 0, peak = 0;
    for (std::size_t k = 0; k < runs.size(); ++k) {
        const Op& op = graph.op(runs[k].op);
        held += change[k];
        peak = std::max(peak, held + workspace(op, baseline(op), runs[k].skip && !op.tape.empty()));
    }
    return graph.resident() + peak;
}

StepList rolled(const Unrolled& unrolled, StepList list) {
    for (Step& step : list.steps) {
        const auto id = at(step.id);
        if (step.verb == Verb::run) {
            step.id = unrolled.runs[id].op;
            step.skip = unrolled.runs[id].skip;
        } else {
            step.id = unrolled.tensors[id];
        }
    }
    return list;
}

} // namespace memsched
