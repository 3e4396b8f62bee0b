#include "support.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>

namespace memsched::bindings {
namespace {

thread_local PyObject* listened_to [[gnu::tls_model("initial-exec")]] =
    nullptr; // not an object: a thread may end without the GIL

// Clears a Python error that only says that a value is invalid. All others propagate: Ctrl-C, and whatever the value's
// own code raised.
void drop_refusal() {
    for (PyObject* kind : {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError}) {
        if (PyErr_ExceptionMatches(kind) != 0) {
            PyErr_Clear();
            return;
        }
    }
    throw py::error_already_set();
}

// Values without a repr, such as numbers of thousands of digits, are named by type; long ones are cut.
std::string shown(py::handle value) {
    constexpr std::size_t longest = 1000;
    std::string text;
    try {
        text = py::cast<std::string>(py::module_::import("builtins").attr("ascii")(value));
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_Exception)) {
            throw;
        }
        return std::string("a value that cannot be shown, of type ") + Py_TYPE(value.ptr())->tp_name;
    }
    return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

bool is_bool(py::handle value) { // numpy 1 and 2 use different names
    const std::string type = Py_TYPE(value.ptr())->tp_name;
    return PyBool_Check(value.ptr()) != 0 || type == "numpy.bool" || type == "numpy.bool_";
}

bool is_text(py::handle value) { // or bytes, or numpy's raw bytes
    const std::string type = Py_TYPE(value.ptr())->tp_name;
    return PyUnicode_Check(value.ptr()) != 0 || PyBytes_Check(value.ptr()) != 0 || type == "numpy.void";
}

// Python would drop the imaginary part of numpy's complex numbers, and the unit of its durations.
bool loses_meaning(py::handle value) {
    const py::object kind = py::getattr(py::getattr(value, "dtype", py::none()), "kind", py::none());
    return PyComplex_Check(value.ptr()) != 0 || (!kind.is_none() && py::str("cmM").contains(kind));
}

} // namespace

void refuse(const std::string& field, py::handle value, const std::string& wanted) {
    throw std::invalid_argument(field + " is " + shown(value) + "; it must be " + wanted);
}

std::int64_t to_whole(py::handle value, const std::string& field) {
    const char* wanted = "a whole number";
    if (PyLong_CheckExact(value.ptr()) == 0 && (is_bool(value) || is_text(value) || loses_meaning(value))) {
        refuse(field, value, wanted);
    }
    py::object whole;
    if (PyIndex_Check(value.ptr()) != 0) {
        whole = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
        if (!whole) {
            drop_refusal();
            refuse(field, value, wanted);
        }
    } else {
        const double number = to_number(value, field);
        if (!std::isfinite(number) || number != std::floor(number)) {
            refuse(field, value, wanted);
        }
        whole = py::reinterpret_steal<py::object>(PyLong_FromDouble(number));
    }
    int overflow = 0;
    const std::int64_t number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
    if (overflow != 0) {
        refuse(field, value, "a whole number less than 2^63");
    }
    return number;
}

Bytes to_bytes(py::handle value, const std::string& field) {
    Bytes bytes = exact_bytes + 1;
    try {
        bytes = to_whole(value, field);
    } catch (const std::invalid_argument&) {
        refuse(field, value, "a whole number of bytes, at most 2^53");
    }
    if (bytes > exact_bytes) {
        refuse(field, value, "at most 2^53 bytes; use a coarser unit");
    }
    return bytes;
}

double to_number(py::handle value, const std::string& field) {
    if (PyFloat_CheckExact(value.ptr()) != 0 || PyLong_CheckExact(value.ptr()) != 0) {
    } else if (is_bool(value) || is_text(value) || loses_meaning(value) || PyNumber_Check(value.ptr()) == 0) {
        refuse(field, value, "a number");
    }
    const double number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) {
        drop_refusal();
        refuse(field, value, "a number");
    }
    if ((number == 0.0 || std::isinf(number)) && PyFloat_CheckExact(value.ptr()) == 0) {
        const int same = PyObject_RichCompareBool(value.ptr(), py::float_(number).ptr(), Py_EQ);
        if (same < 0) {
            throw py::error_already_set();
        }
        if (same == 0) { // a Decimal or a Fraction beyond what doubles hold
            refuse(field, value, "a number between 1e-308 and 1e308, or 0");
        }
    }
    return number + 0.0; // no -0.0: what is equal has the same JSON
}

py::object quantity(py::handle value, const std::string& field, const char* kind) {
    return PyUnicode_Check(value.ptr()) == 0
               ? py::reinterpret_borrow<py::object>(value)
               : py::object(py::module_::import("memsched.support.quantities").attr(kind)(field, value));
}

Bytes to_size(py::handle value, const std::string& field) { return to_bytes(quantity(value, field, "size"), field); }

double to_duration(py::handle value, const std::string& field) {
    return to_number(quantity(value, field, "seconds"), field);
}

bool to_flag(py::handle value, const std::string& field) {
    if (!is_bool(value)) {
        refuse(field, value, "true or false");
    }
    return PyObject_IsTrue(value.ptr()) == 1;
}

py::iterator items(py::handle values, const std::string& field) {
    const char* wanted = "a list";
    if (is_text(values) || py::isinstance<py::dict>(values) || PyAnySet_Check(values.ptr()) != 0) {
        refuse(field, values, wanted);
    }
    auto iterator = py::reinterpret_steal<py::iterator>(PyObject_GetIter(values.ptr()));
    if (!iterator) {
        drop_refusal();
        refuse(field, values, wanted);
    }
    return iterator;
}

double to_seconds(py::handle value, const std::string& field) {
    const double seconds = to_number(value, field);
    if (!std::isfinite(seconds) || seconds < 0) {
        refuse(field, value, "a finite number of seconds >= 0");
    }
    return seconds;
}

std::string to_text(py::handle value, const std::string& field) {
    if (PyUnicode_Check(value.ptr()) == 0) {
        refuse(field, value, "a string");
    }
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
    if (text == nullptr) { // lone surrogates
        drop_refusal();
        refuse(field, value, "a string that UTF-8 can write");
    }
    return {text, static_cast<std::size_t>(length)};
}

py::dict to_dict(py::handle value, const std::string& what, const char* wanted) {
    if (!py::isinstance<py::dict>(value)) {
        throw std::invalid_argument(what + " must be " + wanted);
    }
    return py::reinterpret_borrow<py::dict>(value);
}

void hear_interrupts() {
    if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
    }
    if (listened_to != nullptr) {
        const py::handle ask(listened_to);
        ask();
    }
}

void listen_to(const py::object& asked) {
    Py_XDECREF(listened_to);
    static_cast<void>(std::current_exception()); // in a thread of Python, see parallel.cpp
    listened_to = asked.is_none() ? nullptr : py::object(asked).release().ptr();
}

Chunk to_chunk(py::handle value) {
    if (value.is_none()) {
        return {};
    }
    if (is_text(value)) {
        if (to_text(value, "chunk") != "storage") {
            refuse("chunk", value, "None, a number of bytes, or 'storage'");
        }
        return {Chunk::Kind::storage, 0};
    }
    return {Chunk::Kind::bytes, to_bytes(value, "chunk")};
}

py::object from_chunk(const Chunk& chunk) {
    switch (chunk.kind) {
    case Chunk::Kind::bytes:
        return py::int_(chunk.bytes);
    case Chunk::Kind::storage:
        return py::str("storage");
    default:
        return py::none();
    }
}

void check_keys(const py::dict& document, const std::string& what, std::initializer_list<const char*> required,
                std::initializer_list<const char*> optional) {
    std::string missing;
    for (const char* key : required) {
        if (!document.contains(key)) {
            missing += (missing.empty() ? "'" : ", '") + std::string(key) + "'";
        }
    }
    if (!missing.empty()) {
        throw std::invalid_argument(what + " lacks " + missing);
    }
    const auto among = [](std::initializer_list<const char*> keys, const std::string& key) {
        return std::ranges::any_of(keys, [&](const char* known) { return key == known; });
    };
    for (const auto& item : document) {
        const std::string key = to_text(item.first, what + ": a key");
        if (!among(required, key) && !among(optional, key)) {
            throw std::invalid_argument(what + " has the unknown key '" + key + "'; remove it or fix its spelling");
        }
    }
}

bool survives_json(const py::handle& value, int levels) {
    const auto within = [&](const py::handle& one) { return levels > 0 && survives_json(one, levels - 1); };
    if (py::isinstance<py::str>(value)) {
        if (PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) != nullptr) {
            return true;
        }
        PyErr_Clear(); // a lone surrogate
        return false;
    }
    if (py::isinstance<py::dict>(value)) {
        return std::ranges::all_of(py::reinterpret_borrow<py::dict>(value), [&](const auto& item) {
            return py::isinstance<py::str>(item.first) && within(item.first) && within(item.second);
        });
    }
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
        return std::ranges::all_of(py::reinterpret_borrow<py::sequence>(value), within);
    }
    return true;
}

std::string dump_json(const py::object& value, const std::string& field) {
    if (!py::isinstance<py::dict>(value)) {
        refuse(field, value, "a dict");
    }
    const auto of_numpy = [](const py::object& one) -> py::object { // its scalars are numbers of Python
        if (py::isinstance(one, py::module_::import("numpy").attr("generic"))) {
            return one.attr("item")();
        }
        throw py::type_error("no JSON");
    };
    try {
        const py::object dumps = py::module_::import("json").attr("dumps");
        const auto text = dumps(value, "allow_nan"_a = false, "default"_a = py::cpp_function(of_numpy));
        if (survives_json(value)) {
            return py::cast<std::string>(text);
        }
    } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError) &&
            !error.matches(PyExc_RecursionError)) {
            throw;
        }
    }
    refuse(
        field, value,
        "a dict that JSON can write and read again (no NaN, inf or objects; keys are text; UTF-8; at most 96 levels)");
}

py::object load_json(const std::string& text) { return py::module_::import("json").attr("loads")(text); }

PythonProgress::PythonProgress(std::optional<double> time_limit, py::object callback, std::optional<std::int64_t> ticks)
    : time_limit_(time_limit), ticks_left_(ticks.value_or(std::numeric_limits<std::int64_t>::max())),
      callback_(std::move(callback)) {
    if (time_limit && (std::isnan(*time_limit) || *time_limit < 0)) {
        throw std::invalid_argument("time_limit is " + show(*time_limit) + "; it must be >= 0 seconds, or None");
    }
    if (!callback_.is_none() && PyCallable_Check(callback_.ptr()) == 0) {
        refuse("progress", callback_, "a function of one argument, or None");
    }
    hear_interrupts();
    progress_.on_tick = [this](double fraction) { return tick(fraction); };
    without_gil_.emplace();
}

bool PythonProgress::tick(double fraction) {
    const auto now = Clock::now();
    if (now - last_check_ > std::chrono::milliseconds(50)) {
        last_check_ = now;
        const py::gil_scoped_acquire gil;
        hear_interrupts();
        if (!callback_.is_none()) {
            callback_(fraction);
        }
    }
    return --ticks_left_ <= 0 || (time_limit_ && std::chrono::duration<double>(now - start_).count() > *time_limit_);
}

void register_errors() {
    py::register_exception_translator([](std::exception_ptr pointer) {
        const auto raise = [](const char* name, auto&&... arguments) {
            const py::object type = py::module_::import("memsched.errors").attr(name);
            const py::object error = type(arguments...);
            PyErr_SetObject(type.ptr(), error.ptr());
        };
        try {
            if (pointer) {
                std::rethrow_exception(pointer);
            }
        } catch (const InfeasibleError& error) {
            raise("InfeasibleError", error.what(), error.min_memory);
        } catch (const ScheduleError& error) {
            raise("ScheduleError", error.what(), error.step < 0 ? py::object(py::none()) : py::int_(error.step));
        } catch (const std::invalid_argument& error) {
            raise("InvalidInputError", error.what());
        } catch (const std::length_error& error) {
            raise("LimitError", error.what());
        } catch (const Stopped&) {
            raise("LimitError", "time_limit was over before there was a plan; give more");
        } catch (const std::runtime_error& error) {
            const std::string_view told(error.what()); // pybind11's messages for lists, numbers, texts and arguments
            if (told.rfind("Could not allocate", 0) != 0 && told.rfind("Unable to convert call argument", 0) != 0) {
                throw;
            }
            PyErr_NoMemory();
        }
    });
}

} // namespace memsched::bindings
