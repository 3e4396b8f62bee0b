// Shared by all classes with a JSON form: from_json, to_json, ==, pickle. The forms are read and written in Python.
#pragma once

#include "support.h"

namespace memsched::bindings {

inline py::object documents() { return py::module_::import("memsched.support.documents"); }

template <class T, class... Extra>
void bind_document(py::class_<T, Extra...>& cls, const char* reader, const char* writer) {
    cls.def_static(
           "from_json",
           [reader](const py::object& source) { return documents().attr(reader)(source).template cast<T>(); },
           "source"_a, "Reads the JSON form from a dict, a JSON text or the path of a file.")
        .def(
            "to_json", [writer](const py::object& self) { return py::dict(documents().attr(writer)(self)); },
            "The JSON form as a dict; from_json reads it back equal.")
        .def(
            "__eq__", [](const T& a, const T& b) { return a == b; }, py::is_operator())
        .def(
            py::pickle([writer](const py::object& self) { return py::dict(documents().attr(writer)(self)); },
                       [reader](const py::dict& state) { return documents().attr(reader)(state).template cast<T>(); }));
    cls.attr("__hash__") = py::none();
}

} // namespace memsched::bindings
