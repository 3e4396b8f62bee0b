#include "support.h"

#include <exception>

PYBIND11_MODULE(_core, module) {
    using namespace memsched::bindings;
    module.doc() = "The C++ core of memsched. Import memsched instead; names here may change.";
    static_cast<void>(std::current_exception()); // allocates memory at its first call in a thread, see parallel.cpp
    module.attr("__version__") = MEMSCHED_VERSION;
    register_errors();
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
}
