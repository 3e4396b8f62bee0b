// moDNN.
#include "memsched/planners/modnn/modnn.h"
#include "support.h"

namespace memsched::bindings {

void bind_modnn(py::module_& module) {
    module.def("modnn_min_memory", &modnn_min_memory, "graph"_a, "Bytes, resident included: eq. (2).");
    module.def("need_of_fastest", &need_of_fastest, "graph"_a,
               "Bytes, resident excluded: the largest need of an op with its fastest algorithm.");
    module.def(
        "modnn",
        [](const Graph& graph, const Device& device, bool foresee, const py::object& planner,
           const py::object& progress, std::optional<double> time_limit) {
            const std::string text = dump_json(planner, "planner");
            const PythonProgress ticker(time_limit, progress);
            const ModnnSolution found = modnn(graph, device, device.memory, {foresee}, ticker.progress());
            return std::pair(name_schedule(graph, device.memory, found.steps, text), found.makespan);
        },
        "graph"_a, "device"_a, "foresee"_a, "planner"_a, "progress"_a = py::none(), "time_limit"_a = py::none(),
        "The schedule, and the makespan by the planner's own clock.");
}

} // namespace memsched::bindings
