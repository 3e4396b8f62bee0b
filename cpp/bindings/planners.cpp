// The entry points that python/memsched/planners builds on. They work on graphs and plain arrays.
#include "memsched/bounds/cut_bound.h"
#include "memsched/bounds/pause_bound.h"
#include "memsched/bounds/recompute_bound.h"
#include "memsched/bounds/steady_bound.h"
#include "memsched/build/makespans.h"
#include "memsched/model/fixed_choices.h"
#include "memsched/model/variants.h"
#include "memsched/planners/offload/chain_plans.h"
#include "memsched/planners/offload/dynprog.h"
#include "memsched/planners/offload/offload.h"
#include "memsched/planners/remat/pebbles.h"
#include "support.h"

#include <cmath>
#include <functional>
#include <stdexcept>

namespace memsched::bindings {
namespace {

template <class T> std::vector<T> copied(const Column<T>& array) { return {array.data(), array.data() + array.size()}; }

template <class Named> std::vector<std::string> names_of(const std::vector<Named>& all) {
    std::vector<std::string> names;
    for (const Named& one : all) {
        names.push_back(one.name);
    }
    return names;
}

FetchRule rule_of(std::optional<int> ahead) { return ahead ? FetchRule{FetchRule::Kind::ops, *ahead} : FetchRule{}; }

void bind_sets(py::module_& module) {
    module.def(
        "offload_set_makespans",
        [](const Graph& graph, const Device& device, Bytes budget, const Flags& rows, std::optional<int> ahead,
           bool stall, std::optional<double> time_limit, const py::object& progress) {
            const std::span<const std::uint8_t> flags(rows.data(), static_cast<std::size_t>(rows.size()));
            const PythonProgress ticker(time_limit, progress);
            return offload_set_makespans(graph, device, budget, flags, rule_of(ahead), stall, ticker.progress());
        },
        "graph"_a, "device"_a, "budget"_a, "rows"_a, "ahead"_a = py::none(), "stall"_a = true,
        "time_limit"_a = py::none(), "progress"_a = py::none());
    module.def(
        "offload_set_schedule",
        [](const Graph& graph, Bytes budget, const Flags& travels, const PlannerText& planner, const Chunk& chunk,
           std::optional<int> ahead, std::optional<Bytes> limit) {
            const std::vector<std::uint8_t> flags = copied(travels);
            const py::gil_scoped_release free;
            if (!limit) {
                return name_schedule(graph, budget, offload_set_steps(graph, budget, flags, rule_of(ahead)),
                                     planner.json, chunk);
            }
            const FixedChoices fixed = fix_choices(graph, *limit);
            StepList list = offload_set_steps(fixed.graph, budget, flags, rule_of(ahead));
            return name_schedule(graph, budget, fixed.on_original(std::move(list)), planner.json, chunk);
        },
        "graph"_a, "budget"_a, "travels"_a, "planner"_a, "chunk"_a = py::none(), "ahead"_a = py::none(),
        "workspace_limit"_a = py::none(), "Ops have one algorithm each, or take the fastest within workspace_limit.");
    module.attr("most_pebbles") = most_pebbles;
    module.def(
        "play_pebbles",
        [](const Graph& graph, const Device& device, std::int64_t most_states, std::optional<double> time_limit,
           const PlannerText& planner) {
            const PythonProgress ticker(time_limit);
            PebbleGame found = play_pebbles(graph, device, most_states, ticker.progress());
            std::optional<Schedule> schedule;
            if (found.steps) {
                schedule = name_schedule(graph, device.memory, *found.steps, planner.json);
            }
            return std::tuple(std::move(schedule), found.proven, found.states);
        },
        "graph"_a, "device"_a, "most_states"_a, "time_limit"_a, "planner"_a,
        "A plan or None, whether it is proven that there is none, and the number of states searched.");
    module.def(
        "offload_search",
        [](const Graph& graph, const Device& device, Bytes budget, const Flags& starts, Seconds lower_bound, double gap,
           std::uint64_t seed, std::optional<std::uint64_t> moves, std::optional<double> time_limit,
           const PlannerText& planner, const Chunk& chunk, const py::object& progress) {
            const std::span<const std::uint8_t> flags(starts.data(), static_cast<std::size_t>(starts.size()));
            OffloadOptions options{lower_bound, gap, seed};
            options.most = moves.value_or(options.most);
            const PythonProgress ticker(time_limit, progress);
            const OffloadSolution best = offload_search(graph, device, budget, flags, options, ticker.progress());
            return std::pair(name_schedule(graph, budget, best.steps, planner.json, chunk), best.evaluations);
        },
        "graph"_a, "device"_a, "budget"_a, "starts"_a, "lower_bound"_a, "gap"_a, "seed"_a, "moves"_a, "time_limit"_a,
        "planner"_a, "chunk"_a, "progress"_a = py::none());
}

template <class Solution> py::class_<Solution> bind_solution(py::module_& module, const char* name) {
    return py::class_<Solution>(module, name)
        .def_property_readonly("offloaded", view_of<Solution, std::uint8_t>(&Solution::offloaded))
        .def_readonly("makespan", &Solution::makespan)
        .def_readonly("lower_bound", &Solution::lower_bound)
        .def_readonly("optimal", &Solution::optimal)
        .def_readonly("states", &Solution::states);
}

void bind_fluid(py::module_& module) {
    py::class_<FluidChain>(module, "FluidChain", "A chain in the interruptible link model, times in link bytes.")
        .def(
            py::init([](const Column<double>& forward, const Column<double>& backward, const Column<double>& activation,
                        const Column<double>& gradient, const Column<double>& forward_overhead,
                        const Column<double>& backward_overhead, double capacity) {
                FluidChain chain{copied(forward),  copied(backward),         copied(activation),
                                 copied(gradient), copied(forward_overhead), copied(backward_overhead),
                                 capacity};
                check_fluid_chain(chain);
                return chain;
            }),
            "forward"_a, "backward"_a, "activation"_a, "gradient"_a, "forward_overhead"_a, "backward_overhead"_a,
            "capacity"_a)
        .def_property_readonly("min_capacity", &fluid_min_capacity)
        .def(
            "makespan", [](const FluidChain& chain, const Flags& set) { return fluid_makespan(chain, copied(set)); },
            "offloaded"_a, "Makespan of one offload set in link bytes; infinity if it does not fit.");
    bind_solution<DynprogSolution>(module, "DynprogSolution");
    bind_solution<FluidSolution>(module, "FluidSolution")
        .def_readonly("rounds", &FluidSolution::rounds)
        .def_readonly("slots", &FluidSolution::slots);
    module.def(
        "dynprog",
        [](const FluidChain& chain, bool hash, double gap, std::size_t max_states, std::optional<double> time_limit,
           const py::object& progress) {
            const DynprogOptions options{gap, max_states};
            const PythonProgress ticker(time_limit, progress);
            return (hash ? dynprog_hash : dynprog)(chain, options, ticker.progress());
        },
        "chain"_a, "hash"_a = false, "gap"_a = 0.0, "max_states"_a = std::size_t{40'000'000},
        "time_limit"_a = py::none(), "progress"_a = py::none());
}

} // namespace

void bind_planners(py::module_& module) {
    module.def("without_host", &without_host, "graph"_a,
               "The same graph, all of whose ops run on the device; None if they do so anyway.");
    module.def("compute_time", &compute_time, "graph"_a, "Seconds of all ops, each once with its fastest algorithm.");
    module.def(
        "graph_bounds",
        [](const Graph& graph, const Device& device, Bytes budget) {
            const Bounds b =
                graph.persistent() ? steady_bounds(graph, device, budget) : GraphBounds(graph).on(device, budget);
            return std::tuple(b.compute, b.transfer, b.fractional);
        },
        py::call_guard<py::gil_scoped_release>(), "graph"_a, "device"_a, "budget"_a,
        "(compute, transfer, fractional) in seconds.");
    module.def(
        "cut_bound",
        [](const Graph& graph, const Device& device, Bytes budget, std::optional<double> time_limit) {
            const PythonProgress ticker(time_limit);
            const CutBound found = cut_bound(graph, device, budget, ticker.progress());
            return std::tuple(found.seconds, found.op, found.price);
        },
        "graph"_a, "device"_a, "budget"_a, "time_limit"_a = py::none(),
        "The bound, and the op and the price per byte that prove it; -1 and 0 where it is the sum of the times.");
    module.def(
        "pause_bound",
        [](const Graph& graph, const Device& device, Bytes budget) {
            const PythonProgress ticker;
            const PauseBound found = pause_bound(graph, device, budget, ticker.progress());
            return std::pair(found.seconds, found.op);
        },
        "graph"_a, "device"_a, "budget"_a,
        "The bound, and the op after which the pauses are; 0 and -1 if there is none.");
    module.def(
        "cut_flows",
        [](const Graph& graph, OpId op, Seconds price) {
            if (op < 0 || at(op) >= graph.ops().size() || !(price > 0 && std::isfinite(price))) {
                throw std::invalid_argument("op or price out of range");
            }
            const Progress progress;
            Pace pace(progress);
            Retention retention(graph, op, Retention::Order::any);
            const Seconds exact = retention.cheapest(price, pace).price;
            std::vector<std::tuple<OpId, TensorId, Seconds>> flows;
            for (const Retention::Flow& flow : retention.flows()) {
                flows.emplace_back(flow.op, flow.tensor, flow.seconds);
            }
            return std::pair(exact, flows);
        },
        "graph"_a, "op"_a, "price"_a,
        "The price, and the flows (op or -1, tensor, seconds) that prove the bound of this op and price.");
    module.def(
        "recompute_bound",
        [](const Graph& graph, const Device& device, Bytes budget) {
            const PythonProgress ticker;
            return recompute_bound(graph, device, budget, ticker.progress());
        },
        "graph"_a, "device"_a, "budget"_a, "Seconds; also holds for schedules that recompute.");
    module.def(
        "movable_tensors", [](const Graph& graph) { return SetBuilder(graph).movable(); }, "graph"_a,
        "Ids of the tensors that may be offloaded, in order of release.");
    module.def(
        "tensor_names", [](const Graph& graph) { return names_of(graph.tensors()); }, "graph"_a,
        "By tensor, without the dicts of Graph.tensors.");
    module.def("op_names", [](const Graph& graph) { return names_of(graph.ops()); }, "graph"_a);
    module.def(
        "tensor_bytes",
        [](const Graph& graph) { return numbers_of<Bytes>(graph.tensors(), [](const Tensor& t) { return t.bytes; }); },
        "graph"_a, "Sizes of the tensors, by id.");
    module.def("same_shape", &same_shape, "one"_a, "other"_a, "Whether all is the same but bytes, times, workspaces.");
    module.def("shrinks", &shrinks, "small"_a, "large"_a,
               "What needs more bytes in the first of two graphs of the same shape than in the second, or \"\".");
    module.def(
        "stages_of_tensors",
        [](const Graph& graph) {
            const auto taped = [&](TensorId t) { return graph.taped(t); };
            return std::pair(numbers_of<std::int64_t>(stages_of_tensors(graph), std::identity()),
                             numbers_of<bool>(all_ids(graph.tensors().size()), taped));
        },
        "graph"_a,
        "For a chain's graph, by tensor: its stage, -1 if it cannot be offloaded, and whether it is a tape.");
    module.def(
        "op_seconds",
        [](const Graph& graph) {
            return numbers_of<Seconds>(graph.ops(), [](const Op& op) { return op.choices[0].time; });
        },
        "graph"_a, "Seconds of each op's first algorithm, by id.");
    module.def(
        "op_count", [](const Graph& graph) { return graph.ops().size(); }, "graph"_a,
        "Without making a list of them, unlike Graph.ops.");
    module.def("tensor_count", [](const Graph& graph) { return graph.tensors().size(); }, "graph"_a);
    py::class_<Lifetimes>(module, "Lifetimes", "When the plain run needs each tensor; ops by id, -1 for none.")
        .def(py::init<const Graph&>(), "graph"_a)
        .def_readonly("last_forward", &Lifetimes::last_forward, "By tensor.")
        .def_readonly("first_backward", &Lifetimes::first_backward, "By tensor.")
        .def_readonly("usage", &Lifetimes::usage, "By op: bytes held while it runs, resident excluded.");
    bind_sets(module);
    bind_fluid(module);
}

} // namespace memsched::bindings
