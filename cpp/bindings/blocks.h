// Blocks of memory as columns.
#pragma once

#include "memsched/simulate/residency.h"
#include "support.h"

namespace memsched::bindings {

// (tensor, start, end, bytes, source, at), one entry a block.
py::tuple block_columns(const std::vector<Block>& blocks);

} // namespace memsched::bindings
