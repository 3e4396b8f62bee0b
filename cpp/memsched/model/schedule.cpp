#include "memsched/model/schedule.h"

#include "memsched/support/errors.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace memsched {
namespace {

using Names = std::unordered_map<std::string, std::int32_t>;

std::int32_t find_choice(const Op& op, const std::string& alg, std::size_t step) {
    if (alg.empty() && op.choices.size() == 1) {
        return 0;
    }
    for (std::size_t c = 0; c < op.choices.size(); ++c) {
        if (op.choices[c].alg == alg) {
            return static_cast<std::int32_t>(c);
        }
    }
    refuse_step(step, alg.empty() ? "run '" + op.name + "' needs an alg, since the op has several choices"
                                  : "op '" + op.name + "' has no algorithm '" + alg + "'");
}

bool find_skip(const Graph& graph, const Op& op, const std::vector<std::string>& skip, std::size_t step) {
    if (skip.empty()) {
        return false;
    }
    std::unordered_set<std::string_view> kept;
    for (const TensorId t : op.tape) {
        kept.insert(graph.tensor(t).name);
    }
    for (const std::string& name : skip) {
        if (kept.erase(name) == 0) {
            refuse_step(step, "run '" + op.name + "' skips '" + name +
                                  "', which must be listed once and be in the op's tape");
        }
    }
    if (!kept.empty()) {
        refuse_step(step, "run '" + op.name + "' skips a part of its tape; skip all of it or none");
    }
    return true;
}

// The addresses of what the step brings, as StepList::at has them.
std::vector<Bytes> find_addresses(const Graph& graph, const NamedStep& named, std::size_t index, const Step& step) {
    std::vector<Bytes> found(count_brought(graph, step), StepList::no_address);
    if (named.at.empty()) {
        return found;
    }
    std::unordered_map<std::string_view, std::size_t> places;
    each_brought(graph, step, [&](TensorId tensor, Bytes, std::size_t place) {
        places.emplace(tensor < 0 ? std::string_view() : graph.tensor(tensor).name, place);
    });
    for (const auto& [name, address] : named.at) {
        const auto place = places.find(name);
        if (place == places.end() || address < 0) {
            refuse_step(index, "address " + std::to_string(address) + " of '" + name + "', in '" + named.name +
                                   "'; addresses are >= 0 and belong to what the step places on the device");
        }
        found[place->second] = address;
    }
    return found;
}

} // namespace

void check_schedule(const Schedule& schedule) {
    std::unordered_set<std::string_view> placed;
    for (const auto& entry : schedule.border) {
        if (!placed.insert(entry.first).second) {
            throw ScheduleError("border names '" + entry.first + "' twice; name each persistent tensor once");
        }
    }
    if (schedule.budget <= 0) {
        throw ScheduleError("budget is " + std::to_string(schedule.budget) + "; a plan needs a budget > 0 bytes");
    }
    if (schedule.rounds.empty()) {
        throw ScheduleError("rounds is empty; a plan runs at least one round [batch, times]");
    }
    for (const Round& round : schedule.rounds) {
        if (round.batch < 1 || round.times < 1) {
            throw ScheduleError("a round is [" + std::to_string(round.batch) + ", " + std::to_string(round.times) +
                                "]; batch and times must be >= 1");
        }
    }
    for (std::size_t k = 0; k < schedule.steps.size(); ++k) {
        const NamedStep& step = schedule.steps[k];
        if (step.verb == Verb::free && !step.after.empty()) {
            refuse_step(k, "a free takes no 'after'; its bytes are released when all earlier uses have ended");
        }
        if (!step.at.empty() && schedule.memory == MemoryMode::fluid) {
            refuse_step(k, "an address ('at') in a fluid plan; make the plan contiguous or leave addresses out");
        }
        for (const StepId earlier : step.after) {
            if (earlier < 0 || at(earlier) >= k) {
                refuse_step(k, "after names step " + std::to_string(earlier) + "; it must point to an earlier step");
            }
        }
    }
}

std::vector<std::string> names_with(const Schedule& schedule, Verb verb, int count) {
    std::vector<std::string> names;
    std::unordered_map<std::string_view, int> seen;
    for (const NamedStep& step : schedule.steps) {
        if (step.verb == verb && ++seen[step.name] == count) {
            names.push_back(step.name);
        }
    }
    return names;
}

StepList resolve(const Graph& graph, const Schedule& schedule, const Progress& progress) {
    Pace pace(progress);
    if (schedule.rounds.size() != 1 || schedule.rounds[0].batch != graph.batch()) {
        throw ScheduleError("the plan's rounds do not fit graph '" + graph.name() + "' of batch " +
                            std::to_string(graph.batch()) + "; a plain graph takes one round of its own batch");
    }
    const auto ids_of = [&](const auto& all) {
        Names ids;
        for (const auto& one : all) {
            pace.spend(Pace::named);
            ids.emplace(one.name, static_cast<std::int32_t>(ids.size()));
        }
        return ids;
    };
    const Names ops = ids_of(graph.ops()), tensors = ids_of(graph.tensors());
    StepList list;
    for (const auto& [name, copies] : schedule.border) {
        const auto found = tensors.find(name);
        if (found == tensors.end() || !graph.tensor(found->second).persistent()) {
            throw ScheduleError("border names '" + name + "', which is no persistent tensor of graph '" + graph.name() +
                                "'; name only those");
        }
        list.border.emplace_back(found->second, copies);
    }
    list.steps.reserve(schedule.steps.size());
    for (std::size_t k = 0; k < schedule.steps.size(); ++k) {
        pace.spend(Pace::named);
        const NamedStep& named = schedule.steps[k];
        const bool is_op = names_op(named.verb);
        const Names& names = is_op ? ops : tensors;
        const auto found = names.find(named.name);
        if (found == names.end()) {
            refuse_step(k, (is_op ? "no op '" : "no tensor '") + named.name + "' in graph '" + graph.name() +
                               "'; was the plan made for another graph or chunk?");
        }
        Step step{named.verb, false, found->second, 0, -1};
        if (named.verb == Verb::run) {
            const Op& op = graph.op(found->second);
            step.choice = find_choice(op, named.alg, k);
            step.skip = find_skip(graph, op, named.skip, k);
        }
        if (schedule.memory == MemoryMode::contiguous) {
            list.at.push_back(find_addresses(graph, named, k, step));
        }
        if (!named.after.empty()) {
            step.after = static_cast<StepId>(list.after.size());
            list.after.push_back(named.after);
        }
        list.steps.push_back(step);
    }
    return list;
}

std::vector<NamedStep> name_steps(const Graph& graph, const StepList& list, const Progress& progress) {
    Pace pace(progress);
    std::vector<NamedStep> named(list.steps.size());
    for (std::size_t k = 0; k < named.size(); ++k) {
        pace.spend(Pace::named);
        const Step& step = list.steps[k];
        NamedStep& out = named[k];
        out.verb = step.verb;
        if (step.verb == Verb::run) {
            const Op& op = graph.op(step.id);
            out.name = op.name;
            if (op.choices.size() > 1) {
                out.alg = op.choices[at(step.choice)].alg;
            }
            if (step.skip) {
                for (const TensorId t : op.tape) {
                    out.skip.push_back(graph.tensor(t).name);
                }
            }
        } else {
            out.name = names_op(step.verb) ? graph.op(step.id).name : graph.tensor(step.id).name;
        }
        if (step.after >= 0) {
            out.after = list.after[at(step.after)];
        }
        if (list.contiguous()) {
            each_brought(graph, step, [&](TensorId tensor, Bytes, std::size_t place) {
                if (list.at[k][place] != StepList::no_address) {
                    out.at.emplace_back(tensor < 0 ? "" : graph.tensor(tensor).name, list.at[k][place]);
                }
            });
        }
    }
    return named;
}

Schedule name_schedule(const Graph& graph, Bytes budget, const StepList& list, const std::string& planner,
                       const Chunk& chunk) {
    Schedule schedule;
    schedule.planner = planner;
    schedule.graph = graph.name();
    schedule.chunk = chunk;
    schedule.rounds = {{graph.batch(), 1}};
    schedule.budget = budget;
    schedule.memory = list.contiguous() ? MemoryMode::contiguous : MemoryMode::fluid;
    for (const auto& [tensor, copies] : list.border) {
        schedule.border.emplace_back(graph.tensor(tensor).name, copies);
    }
    schedule.steps = name_steps(graph, list);
    check_schedule(schedule);
    return schedule;
}

} // namespace memsched
