// Planners of graphs: those that choose classes of feature maps, and moDNN.
#include "memsched/build/makespans.h"
#include "memsched/model/fixed_choices.h"
#include "memsched/planners/classes/baselines.h"
#include "memsched/planners/classes/class_walk.h"
#include "memsched/planners/classes/pooch.h"
#include "memsched/planners/classes/vdnn_sync.h"
#include "memsched/planners/modnn/modnn.h"
#include "memsched/planners/selective/selective.h"
#include "support.h"

namespace memsched::bindings {
namespace {

using MaybeSchedule = std::optional<Schedule>;

std::vector<MapClass> classes_of(const Graph& graph, const Flags& array) {
    if (static_cast<std::size_t>(array.size()) != feature_maps(graph, Lifetimes(graph)).size()) {
        throw std::invalid_argument("classes must have one entry a feature map");
    }
    std::vector<MapClass> classes;
    for (py::ssize_t m = 0; m < array.size(); ++m) {
        classes.push_back(static_cast<MapClass>(std::min<std::uint8_t>(array.at(m), 2)));
    }
    return classes;
}

// The steps on the original graph; none where there is no such plan.
MaybeSchedule schedule_of(const Graph& graph, const FixedChoices& fixed, Bytes budget, const ClassSolution& found,
                          const std::string& planner) {
    ClassBuilder plans(fixed.graph);
    StepList list;
    if (found.makespan == Simulator::illegal ||
        !plans.build(found.classes, budget - graph.resident(), found.rule, list)) {
        return std::nullopt;
    }
    return name_schedule(graph, budget, fixed.on_original(std::move(list)), planner);
}

FetchRule rule_of(const std::string& kind, int layers, bool convolutions, bool soft) {
    const auto known = kind == "demand"   ? FetchRule::Kind::demand
                       : kind == "layers" ? (convolutions ? FetchRule::Kind::convolutions : FetchRule::Kind::layers)
                                          : FetchRule::Kind::eager;
    return {known, layers, soft};
}

// The paper's search, for so many seconds, and for so many more what lies beyond it; with a limit, until then.
std::pair<MaybeSchedule, std::int64_t> searched(const Graph& graph, const Device& device, Bytes limit, bool recompute,
                                                int tree, int beam, bool fill, int threads,
                                                std::optional<double> time_limit, double more_seconds,
                                                std::uint64_t seed, const PlannerText& planner,
                                                const py::object& progress) {
    const auto begin = std::chrono::steady_clock::now();
    const FixedChoices fixed = fix_choices(graph, limit);
    std::optional<PoochSolution> found;
    {
        const PythonProgress ticker(time_limit, progress);
        Workers workers(threads);
        found = pooch(fixed.graph, device, recompute, {tree, beam, fill}, workers, ticker.progress());
    }
    if (!found) {
        return {std::nullopt, 0};
    }
    const bool stays = std::ranges::all_of(found->best.classes, [](MapClass one) { return one == MapClass::keep; });
    if (time_limit) {
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
        more_seconds = std::max(0.0, *time_limit - taken.count());
    }
    if (recompute && more_seconds > 0 && !stays) {
        const PythonProgress ticker(more_seconds, progress);
        found->best =
            improve_classes(fixed.graph, device, std::move(found->best), seed, found->evaluations, ticker.progress());
    }
    return {schedule_of(graph, fixed, device.memory, found->best, planner.json), found->evaluations};
}

void bind_searches(py::module_& module) {
    module.def(
        "swap_all",
        [](const Graph& graph, const Device& device, Bytes limit, bool scheduled, const PlannerText& planner) {
            const py::gil_scoped_release free;
            const FixedChoices fixed = fix_choices(graph, limit);
            const ClassSolution found = swap_all(fixed.graph, device, scheduled);
            return schedule_of(graph, fixed, device.memory, found, planner.json);
        },
        "graph"_a, "device"_a, "workspace_limit"_a, "scheduled"_a, "planner"_a,
        "None if there is no such plan, as for the next three.");
    module.def("pooch", &searched, "graph"_a, "device"_a, "workspace_limit"_a, "recompute"_a, "tree"_a, "beam"_a,
               "fill"_a, "threads"_a, "time_limit"_a, "more_seconds"_a, "seed"_a, "planner"_a,
               "progress"_a = py::none(), "The schedule, and the number of plans simulated.");
    module.def(
        "selective",
        [](const Graph& graph, const Device& device, std::int64_t moves, std::uint64_t seed, bool reorder,
           std::optional<double> time_limit, const PlannerText& planner, const Chunk& chunk,
           const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            std::optional<SelectiveSolution> found = selective(graph, device, moves, seed, reorder, ticker.progress());
            return found ? std::pair(
                               MaybeSchedule(name_schedule(graph, device.memory, found->steps, planner.json, chunk)),
                               found->evaluations)
                         : std::pair(MaybeSchedule(), std::int64_t{0});
        },
        "graph"_a, "device"_a, "moves"_a, "seed"_a, "reorder"_a, "time_limit"_a, "planner"_a, "chunk"_a = py::none(),
        "progress"_a = py::none(), "The schedule, or None, and the number of plans built.");
    module.def(
        "annealed",
        [](const Graph& graph, const Device& device, const Schedule& plan, std::int64_t moves, std::uint64_t seed,
           std::optional<double> time_limit, const PlannerText& planner, const Chunk& chunk,
           const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            const SelectiveSolution found =
                annealed(graph, device, resolve(graph, plan), moves, seed, ticker.progress());
            return std::pair(name_schedule(graph, device.memory, found.steps, planner.json, chunk), found.evaluations);
        },
        "graph"_a, "device"_a, "plan"_a, "moves"_a, "seed"_a, "time_limit"_a, "planner"_a, "chunk"_a = py::none(),
        "progress"_a = py::none(), "The schedule, and the number of plans built.");
    module.def(
        "by_kind",
        [](const Graph& graph, const Device& device, Bytes limit, const PlannerText& planner,
           std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit);
            const FixedChoices fixed = fix_choices(graph, limit);
            const ClassSolution found = by_kind(fixed.graph, device, ticker.progress());
            return schedule_of(graph, fixed, device.memory, found, planner.json);
        },
        "graph"_a, "device"_a, "workspace_limit"_a, "planner"_a, "time_limit"_a = py::none());
    module.def(
        "vdnn_sync",
        [](const Graph& graph, const Device& device, const PlannerText& planner, bool stays) {
            const py::gil_scoped_release free;
            const VdnnSolution found = vdnn_sync(graph, device, stays);
            const bool runs = found.makespan < Simulator::illegal;
            return std::pair(runs ? MaybeSchedule(name_schedule(graph, device.memory, found.steps, planner.json))
                                  : std::nullopt,
                             found.convolutions);
        },
        "graph"_a, "device"_a, "planner"_a, "stays"_a = false,
        "The schedule, and whether it is that of vDNN_conv; `stays`: all is kept.");
}

} // namespace

void bind_classes(py::module_& module) {
    module.def(
        "feature_maps", [](const Graph& graph) { return feature_maps(graph, Lifetimes(graph)); }, "graph"_a,
        "Ids of the activations that the backward reads, in the order of writing.");
    module.def(
        "fixed_choices", [](const Graph& graph, Bytes limit) { return fix_choices(graph, limit).graph; }, "graph"_a,
        "workspace_limit"_a, "The graph with one algorithm per op: the fastest whose workspace is within the limit.");
    module.def(
        "vdnn_classes",
        [](const Graph& graph, bool convolutions) {
            std::vector<std::uint8_t> classes;
            for (const MapClass one : vdnn_classes(graph, Lifetimes(graph), convolutions)) {
                classes.push_back(static_cast<std::uint8_t>(one));
            }
            return classes;
        },
        "graph"_a, "convolutions"_a);
    module.def(
        "class_schedule",
        [](const Graph& graph, const Device& device, Bytes limit, const Flags& classes, const std::string& kind,
           int layers, bool convolutions, bool soft, const PlannerText& planner) {
            const ClassSolution given{classes_of(graph, classes), rule_of(kind, layers, convolutions, soft)};
            return schedule_of(graph, fix_choices(graph, limit), device.memory, given, planner.json);
        },
        "graph"_a, "device"_a, "workspace_limit"_a, "classes"_a, "fetch"_a = "eager", "layers"_a = 1,
        "convolutions"_a = false, "soft"_a = false, "planner"_a = py::dict(),
        "classes, by feature map: 0 keep, 1 swap, 2 recompute. None: they do not fit.");
    module.def(
        "prefix_makespans",
        [](const Graph& graph, const Device& device, Bytes limit, const std::vector<std::int64_t>& counts,
           const std::vector<int>& layers, bool any, std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit);
            return prefix_makespans(fix_choices(graph, limit).graph, device, counts, layers, any, ticker.progress());
        },
        "graph"_a, "device"_a, "workspace_limit"_a, "counts"_a, "layers"_a, "any"_a = false,
        "time_limit"_a = py::none(),
        "Seconds, by number of layers and by count: the first `count` feature maps travel, fetched so many layers "
        "ahead. Infinity where there is no such plan, or no time for it.");
    module.def(
        "least_budget",
        [](const Graph& graph, Bytes limit, const Flags& classes) {
            const std::vector<MapClass> known = classes_of(graph, classes);
            if (std::ranges::find(known, MapClass::recompute) != known.end()) {
                throw std::invalid_argument("classes must be keep or swap");
            }
            const py::gil_scoped_release free;
            return least_budget(fix_choices(graph, limit).graph, known);
        },
        "graph"_a, "workspace_limit"_a, "classes"_a,
        "Least bytes, resident included, for which a plan with classes without recomputation exists.");
    module.def("modnn_min_memory", &modnn_min_memory, "graph"_a, "Bytes, resident included: eq. (2).");
    module.def("need_of_fastest", &need_of_fastest, "graph"_a,
               "Bytes, resident excluded: the largest need of an op with its fastest algorithm.");
    module.def(
        "modnn",
        [](const Graph& graph, const Device& device, bool foresee, const PlannerText& planner,
           const py::object& progress, std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit, progress);
            const ModnnSolution found = modnn(graph, device, foresee, ticker.progress());
            return std::pair(name_schedule(graph, device.memory, found.steps, planner.json), found.makespan);
        },
        "graph"_a, "device"_a, "foresee"_a, "planner"_a, "progress"_a = py::none(), "time_limit"_a = py::none(),
        "The schedule, and the makespan by the planner's own clock.");
    bind_searches(module);
}

} // namespace memsched::bindings
