// The entry points that python/memsched/planners builds on. They work on graphs and plain arrays.
#include "memsched/bounds/bounds.h"
#include "memsched/bounds/recompute_bound.h"
#include "memsched/build/makespans.h"
#include "memsched/model/fixed_choices.h"
#include "memsched/model/lifetimes.h"
#include "memsched/planners/offload/chain_plans.h"
#include "memsched/planners/offload/dynprog.h"
#include "memsched/planners/offload/offload.h"
#include "memsched/planners/remat/pebbles.h"
#include "support.h"

namespace memsched::bindings {
namespace {

template <class T> std::vector<T> copied(const Column<T>& array) { return {array.data(), array.data() + array.size()}; }

FetchRule rule_of(std::optional<int> ahead) { return ahead ? FetchRule{FetchRule::Kind::ops, *ahead} : FetchRule{}; }

void bind_sets(py::module_& module) {
    module.def(
        "offload_set_makespans",
        [](const Graph& graph, const Device& device, Bytes budget, const Flags& rows, std::optional<int> ahead,
           bool stall, std::optional<double> time_limit, const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            const std::span<const std::uint8_t> flags(rows.data(), static_cast<std::size_t>(rows.size()));
            const py::gil_scoped_release free;
            return offload_set_makespans(graph, device, budget, flags, rule_of(ahead), stall, ticker.progress());
        },
        py::arg("graph"), py::arg("device"), py::arg("budget"), py::arg("rows"), py::arg("ahead") = py::none(),
        py::arg("stall") = true, py::arg("time_limit") = py::none(), py::arg("progress") = py::none());
    module.def(
        "offload_set_schedule",
        [](const Graph& graph, Bytes budget, const Flags& travels, const py::object& planner, const py::object& chunk,
           std::optional<int> ahead, std::optional<Bytes> limit) {
            const std::string text = dump_json(planner, "planner");
            const Chunk cut = to_chunk(chunk);
            const std::vector<std::uint8_t> flags = copied(travels);
            const py::gil_scoped_release free;
            if (!limit) {
                return name_schedule(graph, budget, offload_set_steps(graph, budget, flags, rule_of(ahead)), text, cut);
            }
            const FixedChoices fixed = fix_choices(graph, *limit);
            StepList list = offload_set_steps(fixed.graph, budget, flags, rule_of(ahead));
            return name_schedule(graph, budget, fixed.on_original(std::move(list)), text, cut);
        },
        py::arg("graph"), py::arg("budget"), py::arg("travels"), py::arg("planner"), py::arg("chunk") = py::none(),
        py::arg("ahead") = py::none(), py::arg("workspace_limit") = py::none(),
        "Ops have one algorithm each, or take the fastest within workspace_limit.");
    module.attr("most_pebbles") = most_pebbles;
    module.def(
        "play_pebbles",
        [](const Graph& graph, const Device& device, std::int64_t most_states, std::optional<double> time_limit,
           const py::object& planner) {
            const PythonProgress ticker(time_limit, py::none());
            const std::string text = dump_json(planner, "planner");
            const py::gil_scoped_release free;
            PebbleGame found = play_pebbles(graph, device, device.memory, most_states, ticker.progress());
            std::optional<Schedule> schedule;
            if (found.steps) {
                schedule = name_schedule(graph, device.memory, *found.steps, text);
            }
            return std::tuple(std::move(schedule), found.proven, found.states);
        },
        py::arg("graph"), py::arg("device"), py::arg("most_states"), py::arg("time_limit"), py::arg("planner"),
        "A plan or None, whether it is proven that there is none, and the number of states searched.");
    module.def(
        "offload_search",
        [](const Graph& graph, const Device& device, Bytes budget, const Flags& starts, Seconds lower_bound, double gap,
           std::uint64_t seed, std::optional<std::uint64_t> moves, std::optional<double> time_limit,
           const py::object& planner, const py::object& chunk, const py::object& progress) {
            const PythonProgress ticker(time_limit, progress);
            const std::string planner_text = dump_json(planner, "planner");
            const Chunk cut = to_chunk(chunk);
            const std::span<const std::uint8_t> flags(starts.data(), static_cast<std::size_t>(starts.size()));
            OffloadOptions options{lower_bound, gap, seed};
            options.most = moves.value_or(options.most);
            const py::gil_scoped_release free;
            const OffloadSolution best = offload_search(graph, device, budget, flags, options, ticker.progress());
            return std::pair(name_schedule(graph, budget, best.steps, planner_text, cut), best.evaluations);
        },
        py::arg("graph"), py::arg("device"), py::arg("budget"), py::arg("starts"), py::arg("lower_bound"),
        py::arg("gap"), py::arg("seed"), py::arg("moves"), py::arg("time_limit"), py::arg("planner"), py::arg("chunk"),
        py::arg("progress") = py::none());
}

void bind_fluid(py::module_& module) {
    py::class_<FluidChain>(module, "FluidChain", "A chain in the interruptible link model, times in link bytes.")
        .def_property_readonly("min_capacity", &fluid_min_capacity)
        .def(
            "makespan", [](const FluidChain& chain, const Flags& set) { return fluid_makespan(chain, copied(set)); },
            py::arg("offloaded"), "Makespan of one offload set in link bytes; infinity if it does not fit.");
    py::class_<DynprogSolution>(module, "DynprogSolution")
        .def_property_readonly(
            "offloaded",
            [](const py::object& self) { return view(self.cast<const DynprogSolution&>().offloaded, self); })
        .def_readonly("makespan", &DynprogSolution::makespan)
        .def_readonly("lower_bound", &DynprogSolution::lower_bound)
        .def_readonly("optimal", &DynprogSolution::optimal)
        .def_readonly("states", &DynprogSolution::states);
    module.def(
        "dynprog",
        [](const FluidChain& chain, bool hash, std::size_t max_states) {
            const PythonProgress ticker(std::nullopt, py::none());
            const DynprogOptions options{0, max_states};
            const py::gil_scoped_release free;
            return (hash ? dynprog_hash : dynprog)(chain, options, ticker.progress());
        },
        py::arg("chain"), py::arg("hash") = false, py::arg("max_states") = std::size_t{40'000'000});
}

} // namespace

void bind_planners(py::module_& module) {
    module.def(
        "graph_bounds",
        [](const Graph& graph, const Device& device, Bytes budget) {
            const Bounds b = lower_bounds(graph, device, budget);
            return std::tuple(b.compute, b.transfer, b.fractional);
        },
        py::call_guard<py::gil_scoped_release>(), py::arg("graph"), py::arg("device"), py::arg("budget"),
        "(compute, transfer, fractional) in seconds.");
    module.def(
        "recompute_bound",
        [](const Graph& graph, const Device& device, Bytes budget) {
            const PythonProgress ticker(std::nullopt, py::none());
            const py::gil_scoped_release free;
            return recompute_bound(graph, device, budget, ticker.progress());
        },
        py::arg("graph"), py::arg("device"), py::arg("budget"), "Seconds; also holds for schedules that recompute.");
    module.def(
        "movable_tensors", [](const Graph& graph) { return SetBuilder(graph).movable(); }, py::arg("graph"),
        "Ids of the tensors that may be offloaded, in order of release.");
    module.def(
        "tensor_names",
        [](const Graph& graph) {
            std::vector<std::string> names;
            for (const Tensor& tensor : graph.tensors()) {
                names.push_back(tensor.name);
            }
            return names;
        },
        py::arg("graph"), "By tensor, without the dicts of Graph.tensors.");
    module.def(
        "op_names",
        [](const Graph& graph) {
            std::vector<std::string> names;
            for (const Op& op : graph.ops()) {
                names.push_back(op.name);
            }
            return names;
        },
        py::arg("graph"));
    module.def(
        "tensor_bytes",
        [](const Graph& graph) {
            py::array_t<Bytes> bytes(static_cast<py::ssize_t>(graph.tensors().size()));
            for (std::size_t t = 0; t < graph.tensors().size(); ++t) {
                bytes.mutable_at(t) = graph.tensors()[t].bytes;
            }
            return bytes;
        },
        py::arg("graph"), "Sizes of the tensors, by id.");
    module.def(
        "stages_of_tensors",
        [](const Graph& graph) {
            py::array_t<bool> tape(static_cast<py::ssize_t>(graph.tensors().size()));
            std::fill_n(tape.mutable_data(), tape.size(), false);
            for (const Op& op : graph.ops()) {
                for (const TensorId t : op.tape) {
                    tape.mutable_at(t) = true;
                }
            }
            const std::vector<std::int32_t> stage = stages_of_tensors(graph);
            return py::make_tuple(py::array_t<std::int64_t>(
                                      py::array_t<std::int32_t>(static_cast<py::ssize_t>(stage.size()), stage.data())),
                                  tape);
        },
        py::arg("graph"),
        "For a chain's graph, by tensor: its stage, -1 if it cannot be offloaded, and whether it is a tape.");
    module.def(
        "op_seconds",
        [](const Graph& graph) {
            py::array_t<Seconds> seconds(static_cast<py::ssize_t>(graph.ops().size()));
            for (std::size_t op = 0; op < graph.ops().size(); ++op) {
                seconds.mutable_at(op) = graph.ops()[op].choices[0].time;
            }
            return seconds;
        },
        py::arg("graph"), "Seconds of each op's first algorithm, by id.");
    module.def(
        "op_count", [](const Graph& graph) { return graph.ops().size(); }, py::arg("graph"),
        "Without making a list of them, unlike Graph.ops.");
    module.def("tensor_count", [](const Graph& graph) { return graph.tensors().size(); }, py::arg("graph"));
    py::class_<Lifetimes>(module, "Lifetimes", "When the plain run needs each tensor; ops by id, -1 for none.")
        .def(py::init<const Graph&>(), py::arg("graph"))
        .def_readonly("last_forward", &Lifetimes::last_forward, "By tensor.")
        .def_readonly("first_backward", &Lifetimes::first_backward, "By tensor.")
        .def_readonly("usage", &Lifetimes::usage, "By op: bytes held while it runs, resident excluded.");
    bind_sets(module);
    bind_fluid(module);
}

} // namespace memsched::bindings
