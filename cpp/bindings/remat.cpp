// rotor and POFO, and graphs whose recomputation is explicit.
#include "memsched/planners/remat/least_memory.h"
#include "memsched/planners/remat/merged_chain.h"
#include "memsched/planners/remat/pofo.h"
#include "memsched/simulate/unroll.h"
#include "support.h"

#include <cmath>

namespace memsched::bindings {
namespace {

// A chain's table, kept with what it refers to.
struct RematTable {
    RematTable(const Chain& chain, Bytes capacity, int slots, int threads, int layers, const Progress& progress)
        : unit(unit_of(chain)), source(chain, unit), merged(source, layers), workers(threads),
          table(merged.chain, capacity, slots, workers, progress) {}

    Seconds seconds(double units) const { return std::ldexp(units, unit); }
    Bandwidth speed(Bandwidth link) const { return std::ldexp(link, unit); } // bytes per unit of time

    int unit;
    RematChain source;
    MergedChain merged;
    Workers workers;
    SegmentTable table;
};

// A plan for Python: the runs on the chain's graph, and the offloaded inputs, a^k or with `saved` x^k.
struct RematPlan {
    std::vector<OpId> ops;
    std::vector<std::uint8_t> skips;
    std::vector<int> offloaded;
    std::vector<std::uint8_t> saved;
    Seconds time = 0;
    std::uint64_t states = 0;
};

// `merged`: whose layers the plan is of.
RematPlan plan_of(const RematChain& chain, const MergedChain& merged, const RematSolution& found) {
    RematPlan plan;
    for (const Run& run : graph_runs(chain, merged.layers(found.sequence))) {
        plan.ops.push_back(run.op);
        plan.skips.push_back(run.skip ? 1 : 0);
    }
    plan.time = found.time;
    plan.states = found.states;
    for (const PofoBlock& block : found.blocks) {
        if (block.offloaded) { // the output of the layers before, or all that they save
            const int last = merged.ends[at(block.first - 1)];
            const int first = block.input_saved ? merged.ends[at(block.first - 2)] + 1 : last;
            for (int k = first; k <= last; ++k) {
                plan.offloaded.push_back(k);
                plan.saved.push_back(block.input_saved ? 1 : 0);
            }
        }
    }
    return plan;
}

std::optional<RematPlan> plan_of(const RematTable& self, const std::optional<RematSolution>& found) {
    if (!found) {
        return std::nullopt;
    }
    RematPlan plan = plan_of(self.source, self.merged, *found);
    plan.time = self.seconds(found->time);
    return plan;
}

// Plans that fit although they do not in slots.
RematPlan least_plan(const Chain& chain, Bytes capacity, bool linked, const py::object& progress) {
    const PythonProgress ticker(std::nullopt, progress);
    const RematChain remat(chain);
    const LeastMemory least(remat, ticker.progress());
    const RematSolution found =
        linked ? least.pofo_plan(capacity) : RematSolution{least.rotor_sequence(capacity), {}, 0, 0};
    return plan_of(remat, MergedChain(remat, remat.layers), found);
}

std::vector<Run> runs_of(const Graph& graph, const Column<OpId>& ops, const Column<std::uint8_t>& skips) {
    if (ops.size() != skips.size()) {
        throw std::invalid_argument("ops and skips must be of one length");
    }
    std::vector<Run> runs;
    for (py::ssize_t k = 0; k < ops.size(); ++k) {
        if (ops.at(k) < 0 || static_cast<std::size_t>(ops.at(k)) >= graph.ops().size()) {
            throw std::invalid_argument("ops has an id outside the graph");
        }
        runs.push_back({ops.at(k), skips.at(k) != 0});
    }
    return runs;
}

void bind_plan(py::module_& module) {
    py::class_<RematPlan>(module, "RematPlan", "Runs of a plan on the chain's graph, and its offloaded inputs.")
        .def_property_readonly("ops", view_of(&RematPlan::ops), "Op ids in the order of the runs.")
        .def_property_readonly("skips", view_of(&RematPlan::skips), "1 where a run skips its tape.")
        .def_property_readonly("offloaded", view_of(&RematPlan::offloaded), "k of each a^k that travels ..")
        .def_property_readonly("saved", view_of(&RematPlan::saved), ".. and 1 where tape^k goes with it.")
        .def_readonly("time", &RematPlan::time, "Seconds in the fluid link model.")
        .def_readonly("states", &RematPlan::states);
}

} // namespace

void bind_remat(py::module_& module) {
    bind_plan(module);
    module.attr("most_table_layers") = most_table_layers;
    py::class_<RematTable>(module, "RematTable", "C_A at Delta = 0 for all parts of a chain: one table, many budgets.")
        .def(py::init([](const Chain& chain, Bytes capacity, int slots, int threads, int layers,
                         std::optional<double> time_limit, const py::object& progress) {
                 const PythonProgress ticker(time_limit, progress);
                 if (slots < 1) {
                     throw std::invalid_argument("slots is " + std::to_string(slots) + "; it must be >= 1");
                 }
                 return std::make_unique<RematTable>(chain, capacity, slots, threads, layers, ticker.progress());
             }),
             "chain"_a, "capacity"_a, "slots"_a, "threads"_a, "layers"_a = most_table_layers,
             "time_limit"_a = py::none(), "progress"_a = py::none())
        .def_property_readonly(
            "complete", [](const RematTable& self) { return self.table.complete(); },
            "Whether the table is complete; otherwise it has no plans.")
        .def_property_readonly(
            "layers", [](const RematTable& self) { return self.merged.chain.layers; },
            "Stages and the loss, or the requested number of merged groups.")
        .def_property_readonly("slots", [](const RematTable& self) { return self.table.slots(); })
        .def_property_readonly(
            "width", [](const RematTable& self) { return self.table.width(); }, "Bytes per slot.")
        .def(
            "time",
            [](const RematTable& self, int first, int last, int free) {
                if (first < 1 || last < first || last > self.merged.chain.layers || free < 0 ||
                    free > self.table.slots()) {
                    throw std::invalid_argument("no such cell");
                }
                return self.seconds(self.merged.chain.ideal(first, last) +
                                    static_cast<double>(self.table.extra(first, last, free)));
            },
            "first"_a, "last"_a, "free"_a, "One cell, in seconds; for tests.")
        .def(
            "rotor", [](const RematTable& self, Bytes capacity) { return plan_of(self, rotor(self.table, capacity)); },
            py::call_guard<py::gil_scoped_release>(), "capacity"_a)
        .def(
            "pofo",
            [](RematTable& self, Bytes capacity, const Device& device, bool exact, int beam,
               std::optional<double> time_limit, const py::object& progress) {
                const PythonProgress ticker(time_limit, progress);
                const PofoOptions options{
                    capacity, self.speed(device.d2h), self.speed(device.h2d), device.host_memory, exact, beam};
                return plan_of(self, pofo(self.table, options, self.workers, ticker.progress()));
            },
            "capacity"_a, "device"_a, "exact"_a, "beam"_a, "time_limit"_a = py::none(), "progress"_a = py::none());
    module.def(
        "least_memory",
        [](const Chain& chain) {
            const PythonProgress ticker;
            const RematChain remat(chain);
            const LeastMemory least(remat, ticker.progress());
            return std::pair(least.rotor(), least.pofo());
        },
        "chain"_a, "(rotor, pofo on a device with a link) in bytes, resident excluded.");
    module.def("least_memory_plan", &least_plan, "chain"_a, "capacity"_a, "linked"_a, "progress"_a = py::none(),
               "A plan that fits any capacity from the least on; its time is not optimised.");
    module.def(
        "peak_of_runs",
        [](const Graph& graph, const Column<OpId>& ops, const Column<std::uint8_t>& skips) {
            const auto runs = runs_of(graph, ops, skips);
            const py::gil_scoped_release free;
            return peak_of_runs(graph, runs);
        },
        "graph"_a, "ops"_a, "skips"_a, "Bytes, resident included, that these runs need without offloading.");
    py::class_<Unrolled>(module, "Unrolled", "A graph in which recomputation is explicit, one op per run.")
        .def(py::init([](const Graph& graph, const Column<OpId>& ops, const Column<std::uint8_t>& skips,
                         std::optional<double> time_limit) {
                 const auto runs = runs_of(graph, ops, skips);
                 const PythonProgress ticker(time_limit);
                 return unroll(graph, runs, ticker.progress());
             }),
             "graph"_a, "ops"_a, "skips"_a, "time_limit"_a = py::none())
        .def_readonly("graph", &Unrolled::graph)
        .def_property_readonly("tensors", view_of(&Unrolled::tensors),
                               "By tensor of the unrolled graph: the tensor of the original.")
        .def(
            "rolled",
            [](const Unrolled& self, const Graph& graph, Schedule schedule, std::optional<double> time_limit) {
                const PythonProgress ticker(time_limit);
                StepList list = rolled(self, resolve(self.graph, schedule, ticker.progress()));
                schedule.steps = name_steps(graph, list, ticker.progress());
                return schedule;
            },
            "graph"_a, "schedule"_a, "time_limit"_a = py::none(),
            "Translates a schedule of the unrolled graph to the original.");
}

} // namespace memsched::bindings
