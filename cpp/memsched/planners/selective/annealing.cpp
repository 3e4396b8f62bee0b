#include "memsched/planners/selective/annealing.h"

#include "memsched/build/free_early.h"
#include "memsched/support/late_acceptance.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace memsched {
namespace {

constexpr int cycles = 3;                    // each from the best plan,
constexpr double coldest = 0.01;             // from a first temperature down to this part of it:
constexpr double heat = 1;                   // in mean times of an op, without a link
constexpr double linked_heat = 0.1;          // and with one
constexpr std::uint64_t most_changes = 1000; // per move, or one for each op of a smaller graph
constexpr std::uint64_t trade_every = 20;    // changes, without a link
constexpr std::int64_t linked_lists = 2;     // with a link, lists that are simulated per move,
constexpr std::int64_t repeated_lists = 5;   // or of whole steps, whose moves take longer, and
constexpr int most_doublings = 7;            // before each 1, 2, .. or 128 changes,
constexpr std::size_t few_ops = 500;         // or, up to here, an exchange as often

// Keeps these steps, in this order; no step waits for another any more that is gone.
void keep_steps(StepList& list, const std::vector<StepId>& order) {
    std::vector<StepId> moved(list.steps.size(), -1); // the new index of each step
    std::vector<Step> steps;
    for (const StepId k : order) {
        moved[at(k)] = static_cast<StepId>(steps.size());
        steps.push_back(list.steps[at(k)]);
    }
    list.steps = std::move(steps);
    for (std::vector<StepId>& earlier : list.after) {
        std::erase_if(earlier, [&](StepId step) { return moved[at(step)] < 0; });
        for (StepId& step : earlier) {
            step = moved[at(step)];
        }
    }
}

// Removes the offloads of tensors that are never prefetched, nor read on the host, from a list without addresses. The
// plan stays legal and gets no slower: what waited waits for less. Offloads of results, which no op reads, stay: the
// host copy is what is left of them. So do those of persistent tensors, whose copies are there at the border.
void drop_unused_offloads(const Graph& graph, StepList& list) {
    std::vector<std::uint8_t> fetched(graph.tensors().size());
    for (const Step& step : list.steps) {
        if (step.verb == Verb::prefetch) {
            fetched[at(step.id)] = 1;
        }
        for (const TensorId t : step.verb == Verb::update ? graph.op(step.id).reads : std::vector<TensorId>{}) {
            fetched[at(t)] = 1;
        }
    }
    std::vector<StepId> kept = all_ids(list.steps.size());
    std::erase_if(kept, [&](StepId k) {
        const Step& step = list.steps[at(k)];
        return step.verb == Verb::offload && !fetched[at(step.id)] && graph.read(step.id) &&
               !graph.tensor(step.id).persistent();
    });
    keep_steps(list, kept);
}

// Frees each tensor right after the step that touches it last, as an offload that is gone may have done. The plan stays
// legal and gets no slower.
void free_at_once(const Graph& graph, StepList& list) {
    keep_steps(list, free_early(graph, list.steps, [](const Step& step) { return step.verb; }));
}

} // namespace

Annealing::Annealing(const Graph& graph, std::size_t ops, Simulator& simulator, bool linked)
    : graph_(graph), ops_(ops), simulator_(simulator), linked_(linked), places_(graph, 0) {
    for (const Op& op : graph.ops()) {
        mean_ += op.choices[0].time / static_cast<double>(graph.ops().size());
    }
}

// The fetches of a list of runs go as early as memory allows.
bool Annealing::list(const RunList& runs) {
    std::optional<std::vector<PlanEvent>> events = runs.events();
    if (!events) {
        return false;
    }
    outline_.events = std::move(*events);
    if (graph_.persistent()) {
        const bool fits = places_.list_repeated(outline_, runs.border(), room_, list_);
        std::erase_if(list_.steps, [&](const Step& step) { return step.verb == Verb::run && at(step.id) == ops_; });
        return fits;
    }
    places_.attribute(outline_);
    return places_.list(outline_, room_, {}, {}, list_);
}

Seconds Annealing::judge(const RunList& runs) {
    ++evaluations_;
    if (!list(runs)) {
        return Simulator::illegal;
    }
    const Seconds found = simulator_.makespan(list_);
    if (found < best_) {
        best_ = found;
        steps_ = list_;
    }
    return found;
}

void Annealing::run(const StepList& plan, Seconds makespan, Bytes room, std::int64_t moves, std::int64_t most,
                    std::uint64_t seed, const std::function<bool()>& stopped) {
    if (makespan < best_) {
        best_ = makespan;
        steps_ = plan;
        room_ = room;
    }
    if (std::ranges::find(steps_.steps, Verb::update, &Step::verb) != steps_.steps.end()) {
        return;
    }
    std::mt19937_64 random(seed);
    const Seconds hot = (linked_ ? linked_heat : heat) * mean_;
    const std::int64_t lists = !linked_ ? 1 : graph_.persistent() ? repeated_lists : linked_lists;
    const std::int64_t count = (linked_ ? lists * moves : most) / cycles;
    std::int64_t left = lists * most;
    const auto changes = std::min<std::uint64_t>(graph_.ops().size(), most_changes);
    RunList before; // its memory serves again
    for (int cycle = 0; cycle < cycles; ++cycle) {
        StepList whole = steps_;
        if (graph_.ops().size() > ops_) {
            whole.run(static_cast<OpId>(ops_));
        }
        RunList runs(graph_, whole, room_, linked_);
        LateAcceptance late(64);
        late.restart(best_);
        for (std::int64_t k = 0; k < count && left > 0 && !stopped(); ++k, --left) {
            const Seconds temperature = hot * std::pow(coldest, static_cast<double>(k) / static_cast<double>(count));
            if (!linked_) {
                for (std::uint64_t more = changes; more > 0; --more) {
                    runs.change(temperature, random);
                    if (more % trade_every == 0) {
                        runs.trade(temperature, random);
                    }
                }
                continue;
            }
            before = runs;
            bool fits = true;
            if (graph_.ops().size() <= few_ops && random() % 2 == 0) {
                fits = runs.exchange(random);
            } else {
                for (auto more = std::uint64_t{1} << (random() % (most_doublings + 1)); more > 0; --more) {
                    runs.change(temperature, random);
                }
            }
            if (!fits || !late.accept(judge(runs))) {
                std::swap(runs, before);
            }
        }
        judge(runs);
    }
}

SelectiveSolution finished(const Graph& graph, StepList steps, std::int64_t evaluations) {
    drop_unused_offloads(graph, steps);
    free_at_once(graph, steps);
    return {std::move(steps), evaluations};
}

SelectiveSolution annealed(const Graph& graph, const Device& device, const StepList& plan, std::int64_t moves,
                           std::uint64_t seed, const Progress& progress) {
    Simulator simulator(graph, device, device.memory);
    const bool linked = device.d2h > 0 && device.h2d > 0;
    Annealing annealing(graph, graph.ops().size(), simulator, linked);
    StepList best = plan;
    Seconds makespan = simulator.makespan(plan);
    bool over = false;
    for (std::int64_t part = first_part; moves > 0 && !over; part *= 2) {
        const std::int64_t most = std::min(part, moves);
        annealing.run(best, makespan, device.memory - graph.resident(), part, most, seed++,
                      [&] { return over = progress.tick(0); });
        best = annealing.steps();
        makespan = annealing.makespan();
        moves -= most;
    }
    return finished(graph, best, annealing.evaluations());
}

} // namespace memsched
