// Orders of ops, and the buffers of a list of steps.
#include "memsched/model/variants.h"
#include "memsched/order/order.h"
#include "memsched/simulate/order_steps.h"
#include "support.h"

#include <functional>

namespace memsched::bindings {

py::tuple stay_columns(const std::vector<Stay>& stays) {
    const auto column = [&](auto member) {
        auto values = numbers_of<std::decay_t<decltype(stays[0].*member)>>(stays, std::mem_fn(member));
        values.attr("setflags")("write"_a = false);
        return values;
    };
    return py::make_tuple(column(&Stay::tensor), column(&Stay::start), column(&Stay::end), column(&Stay::bytes),
                          column(&Stay::source), column(&Stay::at));
}

namespace {

using Kept = std::vector<std::uint8_t>;

void bind_orders(py::module_& module) {
    module.def(
        "order",
        [](const Graph& graph, const Kept& keep, std::optional<double> time_limit, const py::object& progress,
           std::optional<std::int64_t> ticks) {
            const PythonProgress ticker(time_limit, progress, ticks);
            const auto found = order::least_memory_order(order::order_problem(graph, keep), ticker.progress());
            return std::tuple(found.order, found.peak, found.lower_bound, found.visited);
        },
        "graph"_a, "keep"_a, "time_limit"_a, "progress"_a = py::none(), "ticks"_a = py::none(),
        "The ops, the peak and its bound (bytes, resident included), and the number of sets of ops visited.");
    module.def("with_control_edges", &with_control_edges, py::call_guard<py::gil_scoped_release>(), "graph"_a,
               "Persistent tensors as weights, with tensors without bytes that keep their reads and updates in order.");
    module.def(
        "order_bound",
        [](const Graph& graph, const Kept& keep, std::optional<double> time_limit, const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            return order::least_memory_bound(order::order_problem(graph, keep), ticker.progress());
        },
        "graph"_a, "keep"_a, "time_limit"_a, "progress"_a = py::none(),
        "Bytes, resident included: no order has a lower peak, by what must be held beside each op.");
    module.def(
        "order_within",
        [](const Graph& graph, const Kept& keep, Bytes limit, std::uint64_t seed, std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit);
            return order::random_order(order::order_problem(graph, keep), limit, seed, ticker.progress());
        },
        "graph"_a, "keep"_a, "limit"_a, "seed"_a, "time_limit"_a,
        "A random order; within limit (bytes, resident included) as far as possible. Empty if time ran out.");
    module.def(
        "order_peak",
        [](const Graph& graph, const Kept& keep, const std::vector<OpId>& order) {
            return peak_of(order::order_problem(graph, keep), order);
        },
        "graph"_a, "keep"_a, "order"_a, "Bytes, resident included. The order must be topological.");
    module.def(
        "order_schedule",
        [](const Graph& graph, const std::vector<OpId>& order, const Kept& keep, Bytes limit, Bytes budget,
           const PlannerText& planner, const std::optional<std::vector<Bytes>>& addresses) {
            StepList list = order_steps(graph, order, keep, limit);
            if (addresses) {
                list = with_addresses(graph, std::move(list), *addresses);
            }
            return name_schedule(graph, budget, list, planner.json);
        },
        "graph"_a, "order"_a, "keep"_a, "limit"_a, "budget"_a, "planner"_a, "addresses"_a = py::none(),
        "The order as a schedule; with one address per buffer, if given.");
    module.def(
        "order_residency",
        [](const Graph& graph, const std::vector<OpId>& order, const Kept& keep, Bytes limit) {
            return stay_columns(residency(graph, order_steps(graph, order, keep, limit)));
        },
        "graph"_a, "order"_a, "keep"_a, "limit"_a, "The buffers of the order's schedule, as columns.");
}

// The steps on the graph of one of the schedule's rounds.
StepList of_one_round(const Graph& graph, Schedule schedule) {
    schedule.rounds = {{graph.batch(), 1}};
    return resolve(graph, schedule);
}

} // namespace

void bind_ordering(py::module_& module) {
    bind_orders(module);
    module.def(
        "residency",
        [](const Graph& graph, const Schedule& schedule) {
            return stay_columns(residency(graph, of_one_round(graph, schedule)));
        },
        "graph"_a, "schedule"_a, "The buffers of a schedule, as columns like those of Timeline.blocks.");
    module.def(
        "with_addresses",
        [](const Graph& graph, const Schedule& schedule, const std::vector<Bytes>& addresses) {
            Schedule placed = schedule;
            placed.steps = name_steps(graph, with_addresses(graph, of_one_round(graph, schedule), addresses));
            placed.memory = MemoryMode::contiguous;
            return placed;
        },
        "graph"_a, "schedule"_a, "addresses"_a, "The schedule with one address per buffer.");
}

} // namespace memsched::bindings
