#include "support.h"

PYBIND11_MODULE(_core, module) {
    using namespace memsched::bindings;
    module.doc() = "The C++ core of memsched. Import memsched instead; names here may change.";
    module.attr("__version__") = MEMSCHED_VERSION;
    register_errors(module);
    bind_problems(module);
    bind_devices(module);
    bind_schedules(module);
    bind_planners(module);
    bind_remat(module);
    bind_classes(module);
    bind_modnn(module);
    bind_ordering(module);
    bind_placement(module);
}
