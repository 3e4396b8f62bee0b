// Planners of graphs that decide by classes of feature maps.
#include "memsched/class_plans.h"
#include "memsched/errors.h"
#include "memsched/fixed_choices.h"
#include "memsched/planners/class_search.h"
#include "memsched/planners/pooch.h"
#include "memsched/planners/superneurons.h"
#include "memsched/planners/vdnn_sync.h"
#include "support.h"

namespace memsched::bindings {
namespace {

using Classes = py::array_t<std::uint8_t, py::array::c_style | py::array::forcecast>;

// A plan as its steps on the original graph, and the class of each feature map: 0 keep, 1 swap, 2 recompute.
struct ClassPlan {
    Schedule schedule;
    std::vector<std::uint8_t> classes;
};

std::vector<MapClass> classes_of(const Classes& array, std::size_t maps) {
    if (static_cast<std::size_t>(array.size()) != maps) {
        throw std::invalid_argument("classes must have one entry a feature map");
    }
    std::vector<MapClass> classes;
    for (py::ssize_t m = 0; m < array.size(); ++m) {
        classes.push_back(static_cast<MapClass>(std::min<std::uint8_t>(array.at(m), 2)));
    }
    return classes;
}

ClassPlan plan_of(const Graph& graph, const FixedChoices& fixed, Bytes budget, const ClassSolution& found,
                  const std::string& planner) {
    ClassPlans plans(fixed.graph);
    StepList list;
    if (!plans.build(found.classes, budget - graph.resident(), found.rule, list)) {
        throw InfeasibleError("the classes do not fit in " + std::to_string(budget) + " bytes", 0);
    }
    ClassPlan plan{name_schedule(graph, budget, fixed.on_original(std::move(list)), planner), {}};
    for (const MapClass one : found.classes) {
        plan.classes.push_back(static_cast<std::uint8_t>(one));
    }
    return plan;
}

FetchRule rule_of(const std::string& kind, int layers, bool convolutions, bool soft) {
    const auto known = kind == "demand"   ? FetchRule::Kind::demand
                       : kind == "layers" ? FetchRule::Kind::layers
                                          : FetchRule::Kind::eager;
    return {known, layers, convolutions, soft};
}

void bind_searches(py::module_& module) {
    module.def(
        "swap_all",
        [](const Graph& graph, const Device& device, Bytes limit, const py::object& planner) {
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            const FixedChoices fixed = fix_choices(graph, limit);
            return plan_of(graph, fixed, device.memory, swap_all(fixed.graph, device, device.memory), text);
        },
        py::arg("graph"), py::arg("device"), py::arg("workspace_limit"), py::arg("planner"));
    module.def(
        "pooch",
        [](const Graph& graph, const Device& device, Bytes limit, bool recompute, int tree, int beam, bool fill,
           int threads, std::optional<double> time_limit, const py::object& planner, const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            const FixedChoices fixed = fix_choices(graph, limit);
            Workers workers(threads);
            const PoochSolution found =
                pooch(fixed.graph, device, device.memory, recompute, {tree, beam, fill}, workers, ticker.progress());
            return std::pair(plan_of(graph, fixed, device.memory, found.pooch, text), found.evaluations);
        },
        py::arg("graph"), py::arg("device"), py::arg("workspace_limit"), py::arg("recompute"), py::arg("tree"),
        py::arg("beam"), py::arg("fill"), py::arg("threads"), py::arg("time_limit"), py::arg("planner"),
        py::arg("progress") = py::none());
    module.def(
        "superneurons",
        [](const Graph& graph, const Device& device, Bytes limit, const py::object& planner) {
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            const FixedChoices fixed = fix_choices(graph, limit);
            return plan_of(graph, fixed, device.memory, superneurons(fixed.graph, device, device.memory), text);
        },
        py::arg("graph"), py::arg("device"), py::arg("workspace_limit"), py::arg("planner"));
    module.def(
        "vdnn_sync",
        [](const Graph& graph, const Device& device, const py::object& planner) {
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            const VdnnSolution found = vdnn_sync(graph, device, device.memory);
            return std::pair(name_schedule(graph, device.memory, found.steps, text), found.convolutions);
        },
        py::arg("graph"), py::arg("device"), py::arg("planner"));
}

} // namespace

void bind_classes(py::module_& module) {
    py::class_<ClassPlan>(module, "ClassPlan", "A plan made from classes of feature maps.")
        .def_readonly("schedule", &ClassPlan::schedule)
        .def_property_readonly(
            "classes", [](const py::object& self) { return view(self.cast<const ClassPlan&>().classes, self); },
            "By feature map: 0 keep, 1 swap, 2 recompute.");
    module.def("feature_maps", &feature_maps, py::arg("graph"),
               "Ids of the activations that the backward reads, as they are written.");
    module.def(
        "fixed_choices", [](const Graph& graph, Bytes limit) { return fix_choices(graph, limit).graph; },
        py::arg("graph"), py::arg("workspace_limit"),
        "The graph with one algorithm an op: the fastest whose workspace is within the limit.");
    module.def(
        "class_plan",
        [](const Graph& graph, const Device& device, Bytes limit, const Classes& classes, const std::string& kind,
           int layers, bool convolutions, bool soft, const py::object& planner) {
            const FixedChoices fixed = fix_choices(graph, limit);
            const ClassSolution given{classes_of(classes, feature_maps(graph).size()),
                                      rule_of(kind, layers, convolutions, soft)};
            return plan_of(graph, fixed, device.memory, given, dump_json(planner, "planner"));
        },
        py::arg("graph"), py::arg("device"), py::arg("workspace_limit"), py::arg("classes"), py::arg("fetch") = "eager",
        py::arg("layers") = 1, py::arg("convolutions") = false, py::arg("soft") = false,
        py::arg("planner") = py::dict());
    module.def(
        "least_budget",
        [](const Graph& graph, Bytes limit, const Classes& classes) {
            const std::vector<MapClass> known = classes_of(classes, feature_maps(graph).size());
            if (std::find(known.begin(), known.end(), MapClass::recompute) != known.end()) {
                throw std::invalid_argument("classes must be keep or swap");
            }
            return least_budget(fix_choices(graph, limit).graph, known);
        },
        py::arg("graph"), py::arg("workspace_limit"), py::arg("classes"),
        "Bytes, resident included, from which on a plan for classes without recomputation exists.");
    bind_searches(module);
}

} // namespace memsched::bindings
