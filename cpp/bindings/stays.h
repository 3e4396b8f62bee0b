// Stays of buffers as columns.
#pragma once

#include "memsched/simulate/residency.h"
#include "support.h"

namespace memsched::bindings {

// (tensor, start, end, bytes, source, at), one entry per stay.
py::tuple stay_columns(const std::vector<Stay>& stays);

} // namespace memsched::bindings
