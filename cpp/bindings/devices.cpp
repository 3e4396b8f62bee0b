// Device for Python.

#include "documents.h"

namespace memsched::bindings {
namespace {

Device make_device(const py::object& memory, const py::object& bandwidth, const py::object& d2h, const py::object& h2d,
                   const py::object& duplex, const py::object& latency, const py::object& host_memory,
                   const py::object& name) {
    if (!bandwidth.is_none() && !(d2h.is_none() && h2d.is_none())) {
        throw std::invalid_argument("bandwidth sets d2h and h2d; give bandwidth, or d2h and h2d, not both");
    }
    if (d2h.is_none() != h2d.is_none()) {
        throw std::invalid_argument(std::string(d2h.is_none() ? "d2h" : "h2d") +
                                    " is missing; give both directions, or bandwidth for both at once");
    }
    const auto speed = [&](const py::object& direction, const char* field) {
        return !direction.is_none()   ? to_number(quantity(direction, field, "bandwidth"), field)
               : !bandwidth.is_none() ? to_number(quantity(bandwidth, "bandwidth", "bandwidth"), "bandwidth")
                                      : 0.0;
    };
    Device device{to_size(memory, "memory"),
                  speed(d2h, "d2h"),
                  speed(h2d, "h2d"),
                  to_flag(duplex, "duplex"),
                  to_duration(latency, "latency"),
                  {},
                  ""};
    if (!host_memory.is_none()) {
        device.host_memory = to_size(host_memory, "host_memory");
    }
    device.name = name.is_none() ? "" : to_text(name, "name");
    check_device(device);
    return device;
}

} // namespace

void bind_devices(py::module_& module) {
    const auto none = py::none();
    py::class_<Device> device(module, "Device", R"(Memory of the accelerator and its link to the host. Immutable.

Parameters
----------
memory : int or str
    Bytes, > 0; or a text such as "16GiB". So are the other quantities.
bandwidth : float or str, optional
    Bytes per second, such as "12GB/s", in both directions; 0 means no link (the default), inf a free one.
d2h, h2d : float or str, optional
    Bytes per second from device to host and back, instead of `bandwidth`.
duplex : bool
    Whether both directions work at the same time; otherwise the link carries one transfer at a time.
latency : float or str
    Seconds added to every transfer, such as "10us".
host_memory : int or str, optional
    Bytes of host memory for offloaded tensors; None: unlimited.

Examples
--------
>>> import memsched as ms
>>> ms.Device("16GB", "12GB/s") == ms.Device(16e9, 12e9)
True
)");
    device
        .def(py::init(&make_device), "memory"_a, "bandwidth"_a = none, "d2h"_a = none, "h2d"_a = none,
             "duplex"_a = false, "latency"_a = 0.0, "host_memory"_a = none, "name"_a = none)
        .def_readonly("memory", &Device::memory, "Bytes.")
        .def_readonly("d2h", &Device::d2h, "Bytes per second, device to host.")
        .def_readonly("h2d", &Device::h2d, "Bytes per second, host to device.")
        .def_readonly("duplex", &Device::duplex)
        .def_readonly("latency", &Device::latency, "Seconds per transfer.")
        .def_readonly("host_memory", &Device::host_memory, "Bytes, or None.")
        .def_property_readonly(
            "name",
            [](const Device& d) -> py::object { return d.name.empty() ? py::object(py::none()) : py::str(d.name); })
        .def("__repr__", [](const Device& d) {
            return "Device(memory=" + std::to_string(d.memory) + ", d2h=" + show(d.d2h) + ", h2d=" + show(d.h2d) +
                   (d.duplex ? ", duplex=True)" : ")");
        });
    bind_document(device, "read_device", "write_device");
}

} // namespace memsched::bindings
