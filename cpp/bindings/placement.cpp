// Offsets of buffers in one arena.
#include "memsched/placement/placement.h"
#include "support.h"

namespace memsched::bindings {
namespace {

std::vector<placement::Buffer> buffers_of(const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& end,
                                          const std::vector<Bytes>& bytes, const std::vector<Bytes>& alignment,
                                          const std::vector<Bytes>& offset) {
    const std::size_t n = start.size();
    if (end.size() != n || bytes.size() != n || alignment.size() != n || offset.size() != n) {
        throw std::invalid_argument("the columns of the buffers must be equally long");
    }
    std::vector<placement::Buffer> buffers;
    for (std::size_t k = 0; k < n; ++k) {
        buffers.push_back({start[k], end[k], bytes[k], alignment[k], offset[k]});
    }
    return buffers;
}

} // namespace

void bind_placement(py::module_& module) {
    module.def(
        "place",
        [](const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& end,
           const std::vector<Bytes>& bytes, const std::vector<Bytes>& alignment, const std::vector<Bytes>& offset,
           std::optional<Bytes> capacity, bool search, std::optional<double> time_limit, const py::object& progress) {
            const std::vector<placement::Buffer> buffers = buffers_of(start, end, bytes, alignment, offset);
            const PythonProgress ticker(time_limit, progress);
            const placement::Placed placed = placement::place(buffers, {capacity, search}, ticker.progress());
            return std::tuple(placed.offsets, placed.height, placed.lower_bound);
        },
        "start"_a, "end"_a, "bytes"_a, "alignment"_a, "offset"_a, "capacity"_a, "search"_a, "time_limit"_a = py::none(),
        "progress"_a = py::none(),
        "Columns by buffer; offset -1 is free. Returns the offsets, their height, and a lower bound on it.");
    module.def(
        "load",
        [](const std::vector<std::int64_t>& start, const std::vector<std::int64_t>& end,
           const std::vector<Bytes>& bytes) {
            const std::size_t n = start.size();
            const std::vector<Bytes> alignment(n, 1), offset(n, placement::free_offset);
            return placement::load(buffers_of(start, end, bytes, alignment, offset));
        },
        "start"_a, "end"_a, "bytes"_a, "The largest number of bytes alive at once.");
}

} // namespace memsched::bindings
