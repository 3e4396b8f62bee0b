// The only place where Python's numbers, arrays, errors, interrupts and GIL meet the core.
#pragma once

#include "memsched/model/device.h"
#include "memsched/simulate/residency.h"
#include "memsched/support/progress.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace memsched::bindings {

namespace py = pybind11;
using namespace pybind11::literals; // "name"_a: an argument

// An array from numpy, converted if needed.
template <class T> using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;
using Flags = Column<std::uint8_t>;

// Numbers as users give them: ints, integral floats (16e9) and numpy scalars; never bool or str. They throw
// std::invalid_argument naming `field`.
std::int64_t to_whole(py::handle value, const std::string& field);
Bytes to_bytes(py::handle value, const std::string& field);     // a whole number up to exact_bytes
double to_number(py::handle value, const std::string& field);   // seconds and bandwidths; "inf" is a number here
Seconds to_seconds(py::handle value, const std::string& field); // finite and >= 0
// Quantities: numbers, or texts with units, such as "2 ms", which memsched.support.quantities reads; kind is its
// function.
py::object quantity(py::handle value, const std::string& field, const char* kind);
Bytes to_size(py::handle value, const std::string& field);
double to_duration(py::handle value, const std::string& field);
bool to_flag(py::handle value, const std::string& field);        // True or False; truthy values are refused
py::iterator items(py::handle values, const std::string& field); // of a list; never of a str or a dict
std::string to_text(py::handle value, const std::string& field);
py::dict to_dict(py::handle value, const std::string& what, const char* wanted = "an object");

[[noreturn]] void refuse(const std::string& field, py::handle value, const std::string& wanted);

// Throws the exception of Ctrl-C, if it arrived, or of the thread's listener. For loops over Python objects, where
// nothing else checks.
void hear_interrupts();

// A function that this thread calls wherever it checks for Ctrl-C; it raises if the thread must stop. None: nothing.
void listen_to(const py::object& asked);

// A list with one of the functions above for its entries, which are named field[0], field[1], ..
template <class Item> std::vector<Item> to_column(py::handle values, const std::string& field,
                                                  Item (*convert)(py::handle, const std::string&)) {
    constexpr std::size_t most = 10'000'000;
    std::vector<Item> converted;
    for (const py::handle value : items(values, field)) {
        hear_interrupts();
        if (converted.size() == most) {
            refuse(field, values, "a list of at most " + std::to_string(most));
        }
        converted.push_back(convert(value, field + "[" + std::to_string(converted.size()) + "]"));
    }
    return converted;
}

Chunk to_chunk(py::handle value);
py::object from_chunk(const Chunk& chunk);

// Throws for a key that is not in `known` or a missing required key (those before the first optional one).
void check_keys(const py::dict& document, const std::string& what, std::initializer_list<const char*> required,
                std::initializer_list<const char*> optional);

// Whether what JSON writes of a value is read again: the keys of dicts are text (JSON would turn numbers into text, and
// so lose a key), UTF-8 can encode all texts, and there are at most so many levels, to which documents add some.
bool survives_json(const py::handle& value, int levels = 96);

// JSON text of a dict, and back.
std::string dump_json(const py::object& value, const std::string& field);
py::object load_json(const std::string& text);

// The argument `planner`, a dict, as JSON text.
struct PlannerText {
    std::string json;
};

// A number of each item.
template <class Number, class Item, class Get> py::array_t<Number> numbers_of(const std::vector<Item>& all, Get get) {
    py::array_t<Number> numbers(static_cast<py::ssize_t>(all.size()));
    std::transform(all.begin(), all.end(), numbers.mutable_data(), get);
    return numbers;
}

// A read-only numpy view that keeps `owner` alive.
template <class T> py::array view(const std::vector<T>& column, const py::object& owner) {
    py::array_t<T> array(static_cast<py::ssize_t>(column.size()), column.data(), owner);
    array.attr("setflags")("write"_a = false);
    return array;
}

// The getter of a column as such a view.
template <class Owner, class T> auto view_of(std::vector<T> Owner::* column) {
    return [column](const py::object& self) { return view(self.cast<const Owner&>().*column, self); };
}

// Work of the core: it releases the GIL, keeps a time limit, listens to Ctrl-C and reports progress. Python's objects
// may be used before and after, not meanwhile.
class PythonProgress {
  public:
    // time_limit: seconds, or none. callback(fraction), or none, is called about ten times a second. Work stops after
    // so many ticks, too, wherever it runs.
    explicit PythonProgress(std::optional<double> time_limit = std::nullopt, py::object callback = py::none(),
                            std::optional<std::int64_t> ticks = std::nullopt);
    const Progress& progress() const { return progress_; }

  private:
    using Clock = std::chrono::steady_clock;
    bool tick(double fraction);

    Clock::time_point start_ = Clock::now(), last_check_ = start_;
    std::optional<double> time_limit_;
    std::int64_t ticks_left_;
    py::object callback_;
    Progress progress_;
    std::optional<py::gil_scoped_release> without_gil_; // the last member: the others need the GIL when they end
};

// (tensor, start, end, bytes, source, at) of buffers, one entry each.
py::tuple stay_columns(const std::vector<Stay>& stays);

void register_errors();
void bind_devices(py::module_& module);
void bind_problems(py::module_& module);
void bind_schedules(py::module_& module);
void bind_planners(py::module_& module);
void bind_chain_plans(py::module_& module);
void bind_remat(py::module_& module);
void bind_classes(py::module_& module);
void bind_ordering(py::module_& module);
void bind_placement(py::module_& module);

} // namespace memsched::bindings

namespace pybind11::detail {

template <> struct type_caster<memsched::Chunk> {
    PYBIND11_TYPE_CASTER(memsched::Chunk, const_name("object"));

    bool load(handle given, bool) {
        value = memsched::bindings::to_chunk(given);
        return true;
    }
    static handle cast(const memsched::Chunk& chunk, return_value_policy, handle) {
        return memsched::bindings::from_chunk(chunk).release();
    }
};

template <> struct type_caster<memsched::bindings::PlannerText> {
    PYBIND11_TYPE_CASTER(memsched::bindings::PlannerText, const_name("object"));

    bool load(handle given, bool) {
        value.json = memsched::bindings::dump_json(reinterpret_borrow<object>(given), "planner");
        return true;
    }
};

} // namespace pybind11::detail
