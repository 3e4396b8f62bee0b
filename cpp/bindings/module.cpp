#include "support.h"

#include <exception>

namespace {

// For pickle protocols 0 and 1: Python's default, a call of pybind11's base type, would end the process.
void pickle_by_state(memsched::bindings::py::module_& module, std::initializer_list<const char*> names) {
    namespace py = memsched::bindings::py;
    for (const char* name : names) {
        const py::object type = module.attr(name);
        type.attr("__reduce__") = py::cpp_function(
            [](const py::object& self) {
                const py::object make = py::module_::import("copyreg").attr("__newobj__");
                return py::make_tuple(make, py::make_tuple(py::type::of(self)), self.attr("__getstate__")());
            },
            py::name("__reduce__"), py::is_method(type));
    }
}

} // namespace

PYBIND11_MODULE(_core, module) {
    using namespace memsched::bindings;
    module.doc() = "The C++ core of memsched. Import memsched instead; names here may change.";
    static_cast<void>(std::current_exception()); // allocates memory at its first call in a thread, see parallel.cpp
    module.attr("__version__") = MEMSCHED_VERSION;
    register_errors(module);
    bind_problems(module);
    bind_devices(module);
    bind_schedules(module);
    bind_planners(module);
    bind_chain_plans(module);
    bind_remat(module);
    bind_classes(module);
    bind_ordering(module);
    bind_placement(module);
    module.def("hear", &hear_interrupts, "Raises if the thread must stop; for long loops in Python.");
    module.def("listen", &listen_to, "asked"_a,
               "Sets what this thread calls wherever it checks for Ctrl-C; None: nothing.");
    pickle_by_state(module, {"Chain", "Graph", "Device", "Schedule", "Timeline"});
}
