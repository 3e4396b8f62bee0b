// Plans of GREEDY and DYNPROG, singly or as figures of many points.
#include "memsched/planners/offload/chain_plans.h"
#include "support.h"

namespace memsched::bindings {
namespace {

Flags array_of(const TensorFlags& tensors) { return Flags(static_cast<py::ssize_t>(tensors.size()), tensors.data()); }

using Row = std::tuple<Seconds, Seconds, Bytes, std::optional<Seconds>, Bytes, Bytes, Seconds, std::int64_t, Seconds>;

std::vector<std::optional<Row>> figures(const ChainPlans& plans, const ChainPlanner& planner,
                                        const std::vector<Device>& devices) {
    std::vector<std::optional<Row>> rows(devices.size());
    const PythonProgress ticker;
    for (std::size_t k = 0; k < devices.size(); ++k) {
        const auto began = std::chrono::steady_clock::now();
        const auto f = plans.figures(planner, devices[k], ticker.progress());
        const Seconds runtime = std::chrono::duration<Seconds>(std::chrono::steady_clock::now() - began).count();
        if (f) {
            rows[k] = {f->makespan, f->lower_bound, f->peak_memory, f->estimate, f->bytes_out,
                       f->bytes_in, f->idle,        f->offloaded,   runtime};
        }
        ticker.progress().tick(0);
    }
    return rows;
}

} // namespace

void bind_chain_plans(py::module_& module) {
    py::class_<ChainPlanner>(module, "ChainPlanner", "A planner of points of a chain.")
        .def_static("greedy", [] { return ChainPlanner{}; })
        .def_static(
            "dynprog",
            [](std::optional<std::int64_t> slots, int max_rounds, double gap, std::size_t max_states, bool break_ties) {
                return ChainPlanner{FluidOptions{slots, max_rounds, {gap, max_states}}, break_ties};
            },
            "slots"_a, "max_rounds"_a, "gap"_a, "max_states"_a, "break_ties"_a);
    py::class_<ChainPlans>(module, "ChainPlans", "Data of one chain that its plans share on all devices.")
        .def(py::init<const Chain&, const Graph&, bool, Seconds>(), "chain"_a, "graph"_a, "cut"_a, "compute"_a,
             py::keep_alive<1, 3>())
        .def_property_readonly("fluid_least", &ChainPlans::fluid_least)
        .def(
            "release_prefix",
            [](const ChainPlans& plans, const Device& device) { return array_of(plans.release_prefix(device)); },
            "device"_a)
        .def(
            "choose",
            [](const ChainPlans& plans, const ChainPlanner& planner, const Device& device,
               std::optional<double> time_limit, const py::object& progress) {
                ChainChoice choice;
                {
                    const PythonProgress ticker(time_limit, progress);
                    choice = plans.choose(planner, device, ticker.progress());
                }
                return std::pair(array_of(choice.tensors), std::move(choice.model));
            },
            "planner"_a, "device"_a, "time_limit"_a = py::none(), "progress"_a = py::none(),
            "Flags of the offloaded tensors, and the solution of DYNPROG's model.")
        .def(
            "plan",
            [](const ChainPlans& plans, const Flags& tensors, const Device& device, const PlannerText& planner,
               const Chunk& chunk) {
                const TensorFlags flags(tensors.data(), tensors.data() + tensors.size());
                const py::gil_scoped_release free;
                ChainPlan found = plans.plan(flags, device);
                return std::tuple(name_schedule(plans.graph(), device.memory, found.list, planner.json, chunk),
                                  std::move(found.timeline), found.lower_bound);
            },
            "tensors"_a, "device"_a, "planner"_a, "chunk"_a, "Schedule, timeline and lower bound in seconds.")
        .def(
            "figures", &figures, "planner"_a, "devices"_a,
            "(makespan, lower_bound, peak_memory, estimate, bytes_out, bytes_in, idle, offloaded, runtime) of each, or "
            "None if there is a message: then plan that point on its own.");
}

} // namespace memsched::bindings
