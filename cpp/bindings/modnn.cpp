// moDNN.
#include "memsched/planners/modnn/modnn.h"
#include "support.h"

namespace memsched::bindings {

void bind_modnn(py::module_& module) {
    module.def("modnn_min_memory", &modnn_min_memory, py::arg("graph"), "Bytes, resident included: eq. (2).");
    module.def("need_of_fastest", &need_of_fastest, py::arg("graph"),
               "Bytes, resident excluded: the largest need of an op with its fastest algorithm.");
    module.def(
        "modnn",
        [](const Graph& graph, const Device& device, bool foresee, const py::object& planner,
           const py::object& progress, std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit, progress);
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            const ModnnSolution found = modnn(graph, device, device.memory, {foresee}, ticker.progress());
            return std::pair(name_schedule(graph, device.memory, found.steps, text), found.makespan);
        },
        py::arg("graph"), py::arg("device"), py::arg("foresee"), py::arg("planner"), py::arg("progress") = py::none(),
        py::arg("time_limit") = py::none(), "The schedule, and the makespan by the planner's own clock.");
}

} // namespace memsched::bindings
