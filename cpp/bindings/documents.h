// Shared by all classes with a JSON form: from_json, to_json, load, save, ==, pickle. The forms are read and written in
// Python.
#pragma once

#include "support.h"

namespace memsched::bindings {

inline py::object documents() { return py::module_::import("memsched.support.documents"); }

// ==, pickle and no hash, for a class with to_json and from_json.
template <class T> void bind_value(py::class_<T>& cls) {
    cls.def(
           "__eq__", [](const T& a, const T& b) { return a == b; }, py::is_operator())
        .def(py::pickle(
            [](const py::object& self) { return py::dict(self.attr("to_json")()); },
            [](const py::dict& state) { return py::type::of<T>().attr("from_json")(state).template cast<T>(); }))
        // For protocols 0 and 1: Python's default, a call of pybind11's base type, would end the process.
        .def("__reduce__", [](const py::object& self) {
            const py::object make = py::module_::import("copyreg").attr("__newobj__");
            return py::make_tuple(make, py::make_tuple(py::type::of(self)), self.attr("__getstate__")());
        });
    cls.attr("__hash__") = py::none();
}

template <class T> void bind_document(py::class_<T>& cls, const char* reader, const char* writer) {
    cls.def_static(
           "from_json",
           [reader](const py::object& source) { return documents().attr(reader)(source).template cast<T>(); },
           "source"_a, "Reads the JSON form from a dict, a JSON text or the path of a file.")
        .def(
            "to_json", [writer](const py::object& self) { return py::dict(documents().attr(writer)(self)); },
            "The JSON form as a dict; from_json reads it back equal.")
        .def_static(
            "load",
            [reader](const py::object& path) {
                return documents().attr(reader)(documents().attr("file_of")(path)).template cast<T>();
            },
            "path"_a, "Reads a file that `save` wrote.")
        .def(
            "save",
            [writer](const py::object& self, const py::object& path) {
                documents().attr("write_document")(documents().attr("file_of")(path), documents().attr(writer)(self));
            },
            "path"_a, "Writes the JSON form to a file, which is replaced as a whole.");
    bind_value(cls);
}

} // namespace memsched::bindings
