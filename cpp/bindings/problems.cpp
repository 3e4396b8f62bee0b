// Chain and Graph for Python.
#include "documents.h"
#include "memsched/model/lifetimes.h"

#include <limits>
#include <unordered_map>

namespace memsched::bindings {
namespace {

Chain make_chain(const py::object& forward_time, const py::object& backward_time, const py::object& activation,
                 const py::object& gradient, const py::object& saved, const py::object& forward_overhead,
                 const py::object& transient_overhead, const py::object& backward_overhead, const py::object& names,
                 const py::object& resident, const py::object& pieces, const py::object& name,
                 const py::object& provenance) {
    ChainColumns c;
    ChainGiven given;
    c.forward_time = to_column(forward_time, "forward_time", to_duration);
    c.backward_time = to_column(backward_time, "backward_time", to_duration);
    c.activation = to_column(activation, "activation", to_size);
    if (!gradient.is_none()) {
        c.gradient = to_column(gradient, "gradient", to_size);
    } else if (c.gradient = c.activation; !c.gradient.empty()) {
        c.gradient.front() = 0;
    }
    const auto optional = [](const py::object& value, const char* field, std::vector<Bytes>& column, bool& is_given) {
        is_given = !value.is_none();
        if (is_given) {
            column = to_column(value, field, to_size);
        }
    };
    optional(saved, "saved", c.saved, given.saved);
    optional(forward_overhead, "forward_overhead", c.forward_overhead, given.forward_overhead);
    optional(transient_overhead, "transient_overhead", c.transient_overhead, given.transient_overhead);
    optional(backward_overhead, "backward_overhead", c.backward_overhead, given.backward_overhead);
    if ((given.names = !names.is_none())) {
        c.names = to_column(names, "names", to_text);
    }
    if ((given.pieces = !pieces.is_none())) {
        std::size_t k = 0;
        for (const py::handle storages : items(pieces, "pieces")) {
            c.pieces.push_back(to_column(storages, "pieces[" + std::to_string(k++) + "]", to_size));
        }
    }
    c.resident = to_size(resident, "resident");
    c.name = name.is_none() ? "chain" : to_text(name, "name");
    c.provenance = provenance.is_none() ? "" : dump_json(provenance, "provenance");
    return Chain(std::move(c), given);
}

std::vector<TensorId> tensor_ids(const py::dict& op, const char* key, const std::string& what,
                                 const std::unordered_map<std::string, TensorId>& ids) {
    std::vector<TensorId> found;
    if (!op.contains(key)) {
        return found;
    }
    for (const std::string& name : to_column(op[key], what + ": " + key, to_text)) {
        const auto id = ids.find(name);
        if (id == ids.end()) {
            throw std::invalid_argument(what + ": " + key + " names the unknown tensor '" + name + "'");
        }
        found.push_back(id->second);
    }
    return found;
}

constexpr std::string_view roles[] = {"input", "weight", "activation", "gradient",
                                      "persistent"}; // in the order of Role

Tensor parse_tensor(py::handle value, std::size_t index) {
    const std::string what = "tensors[" + std::to_string(index) + "]";
    const py::dict d = to_dict(value, what);
    check_keys(d, what, {"name", "size", "role"}, {});
    Tensor tensor{to_text(d["name"], what + ": name"), to_size(d["size"], what + ": size"), Role::activation};
    const std::string role = to_text(d["role"], what + ": role");
    const auto found = std::ranges::find(roles, role);
    if (found == std::end(roles)) {
        throw std::invalid_argument(what + ": role is '" + role +
                                    "'; it must be input, weight, activation, gradient or persistent");
    }
    tensor.role = static_cast<Role>(found - std::begin(roles));
    return tensor;
}

int to_layer(py::handle value, const std::string& field) {
    const std::int64_t layer = to_whole(value, field);
    if (layer < 0 || layer > std::numeric_limits<int>::max()) {
        throw std::invalid_argument(field + " is " + std::to_string(layer) +
                                    "; it must be a whole number from 0 to 2^31 - 1");
    }
    return static_cast<int>(layer);
}

Op parse_op(py::handle value, std::size_t index, const std::unordered_map<std::string, TensorId>& ids) {
    std::string what = "ops[" + std::to_string(index) + "]";
    const py::dict d = to_dict(value, what);
    check_keys(d, what, {"name", "phase", "reads", "writes", "choices"},
               {"kind", "layer", "once", "tape", "updates", "skip_workspace", "host_time"});
    Op op;
    op.name = to_text(d["name"], what + ": name");
    what = "op '" + op.name + "'";
    const std::string phase = to_text(d["phase"], what + ": phase");
    if (phase != "fwd" && phase != "bwd") {
        throw std::invalid_argument(what + ": phase is '" + phase + "'; it must be fwd or bwd");
    }
    op.phase = phase == "fwd" ? Phase::forward : Phase::backward;
    op.kind = d.contains("kind") ? to_text(d["kind"], what + ": kind") : "";
    op.layer = d.contains("layer") ? to_layer(d["layer"], what + ": layer") : 0;
    op.reads = tensor_ids(d, "reads", what, ids);
    op.writes = tensor_ids(d, "writes", what, ids);
    op.tape = tensor_ids(d, "tape", what, ids);
    op.updates = tensor_ids(d, "updates", what, ids);
    for (const py::handle item : items(d["choices"], what + ": choices")) {
        const py::dict c = to_dict(item, what + ": a choice");
        check_keys(c, what + ": a choice", {"alg", "time", "workspace"}, {});
        op.choices.push_back({to_text(c["alg"], what + ": alg"), to_duration(c["time"], what + ": time"),
                              to_size(c["workspace"], what + ": workspace")});
    }
    if (d.contains("once")) {
        op.once = to_flag(d["once"], what + ": once");
    }
    if (d.contains("skip_workspace")) {
        op.skip_workspace = to_size(d["skip_workspace"], what + ": skip_workspace");
    }
    if (d.contains("host_time")) {
        op.host_time = to_duration(d["host_time"], what + ": host_time");
    }
    return op;
}

Graph make_graph(const py::object& tensors, const py::object& ops, const py::object& name, const py::object& batch,
                 const py::object& resident) {
    GraphData data;
    data.name = to_text(name, "name");
    data.batch = to_whole(batch, "batch");
    data.resident = to_size(resident, "resident");
    std::unordered_map<std::string, TensorId> ids;
    for (const py::handle value : items(tensors, "tensors")) {
        hear_interrupts();
        data.tensors.push_back(parse_tensor(value, data.tensors.size()));
        ids.emplace(data.tensors.back().name, static_cast<TensorId>(data.tensors.size()) - 1);
    }
    for (const py::handle value : items(ops, "ops")) {
        hear_interrupts();
        data.ops.push_back(parse_op(value, data.ops.size(), ids));
    }
    return Graph(std::move(data));
}

py::list names_of(const Graph& graph, const std::vector<TensorId>& ids) {
    py::list names;
    for (const TensorId id : ids) {
        names.append(graph.tensor(id).name);
    }
    return names;
}

py::list tensors_of(const Graph& graph) {
    py::list list;
    for (const Tensor& t : graph.tensors()) {
        hear_interrupts();
        list.append(
            py::dict("name"_a = t.name, "size"_a = t.bytes, "role"_a = roles[static_cast<std::size_t>(t.role)]));
    }
    return list;
}

py::list ops_of(const Graph& graph) {
    py::list list;
    for (const Op& op : graph.ops()) {
        hear_interrupts();
        py::dict d("name"_a = op.name, "phase"_a = op.phase == Phase::forward ? "fwd" : "bwd", "kind"_a = op.kind,
                   "layer"_a = op.layer, "reads"_a = names_of(graph, op.reads),
                   "writes"_a = names_of(graph, op.writes));
        if (op.once) {
            d["once"] = true;
        }
        if (!op.tape.empty()) {
            d["tape"] = names_of(graph, op.tape);
        }
        if (!op.updates.empty()) {
            d["updates"] = names_of(graph, op.updates);
        }
        if (op.skip_workspace) {
            d["skip_workspace"] = *op.skip_workspace;
        }
        if (op.host_time) {
            d["host_time"] = *op.host_time;
        }
        py::list choices;
        for (const Choice& c : op.choices) {
            choices.append(py::dict("alg"_a = c.alg, "time"_a = c.time, "workspace"_a = c.workspace));
        }
        d["choices"] = choices;
        list.append(d);
    }
    return list;
}

} // namespace

void bind_problems(py::module_& module) {
    py::class_<Chain> chain(module, "Chain", R"(A sequential model of n stages, as columns. Immutable.

Seconds and bytes may also be texts with units, such as "2 ms" and "6MiB".

Parameters
----------
forward_time, backward_time : sequence of float, shape [n]
    Seconds of F_k and B_k (u_F, u_B).
activation : sequence of int, shape [n + 1]
    Bytes of a^0 .. a^n: the network's input and each stage's output.
gradient : sequence of int, shape [n + 1], optional
    Bytes of d^0 .. d^n, the gradients of the activations. Default: activation, but 0 for the input, which needs none.
saved : sequence of int, shape [n], optional
    Bytes that F_k leaves for B_k, its output included. Default: activation[1:].
forward_overhead, backward_overhead : sequence of int, shape [n], optional
    Bytes of scratch of a forward that saves, and of the backward. Default: 0.
transient_overhead : sequence of int, shape [n], optional
    Bytes of scratch of a forward that saves nothing. Default: saved - activation[1:] + forward_overhead.
names : sequence of str, shape [n], optional
resident : int
    Bytes that never move (weights, gradients, optimiser state); they count against M everywhere.
pieces : sequence of sequence of int, optional
    Per stage the sizes of the storages that make up saved - activation[1:], for chunk="storage".
name, provenance : str and dict, optional

Raises
------
InvalidInputError
    Naming field, index and value: NaN, inf, negative, empty, mismatched lengths, saved < activation, overflow.

Examples
--------
>>> import memsched as ms
>>> ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5]).n
2
>>> ms.Chain(["1 ms"], ["2 ms"], ["4MiB", "6MiB"], [0, "6MiB"]).activation.tolist()
[4194304, 6291456]
)");
    const auto none = py::none();
    chain
        .def(py::init(&make_chain), "forward_time"_a, "backward_time"_a, "activation"_a, "gradient"_a = none,
             "saved"_a = none, "forward_overhead"_a = none, "transient_overhead"_a = none, "backward_overhead"_a = none,
             "names"_a = none, "resident"_a = 0, "pieces"_a = none, "name"_a = none, "provenance"_a = none)
        .def_property_readonly("n", &Chain::n, "Number of stages.")
        .def("__len__", &Chain::n, "Number of stages.")
        .def_property_readonly("names", [](const Chain& c) { return py::tuple(py::cast(c.columns().names)); })
        .def_property_readonly(
            "resident", [](const Chain& c) { return c.columns().resident; }, "Bytes that never move.")
        .def_property_readonly("name", [](const Chain& c) { return c.columns().name; })
        .def_property_readonly("provenance",
                               [](const Chain& c) -> py::object {
                                   return c.columns().provenance.empty() ? py::none()
                                                                         : load_json(c.columns().provenance);
                               })
        .def_property_readonly("pieces",
                               [](const Chain& c) -> py::object {
                                   return c.columns().pieces.empty() ? py::object(py::none())
                                                                     : py::cast(c.columns().pieces);
                               })
        .def("__repr__", [](const Chain& c) {
            return "Chain(name='" + c.columns().name + "', n=" + std::to_string(c.n()) +
                   ", resident=" + std::to_string(c.columns().resident) + ")";
        });
    const auto column = [&chain](const char* name, auto member, const char* doc) {
        chain.def_property_readonly(
            name, [member](const py::object& self) { return view(self.cast<const Chain&>().columns().*member, self); },
            doc);
    };
    column("forward_time", &ChainColumns::forward_time, "Seconds, shape [n].");
    column("backward_time", &ChainColumns::backward_time, "Seconds, shape [n].");
    column("activation", &ChainColumns::activation, "Bytes, shape [n + 1].");
    column("gradient", &ChainColumns::gradient, "Bytes, shape [n + 1].");
    column("saved", &ChainColumns::saved, "Bytes, shape [n].");
    column("forward_overhead", &ChainColumns::forward_overhead, "Bytes, shape [n].");
    column("transient_overhead", &ChainColumns::transient_overhead, "Bytes, shape [n].");
    column("backward_overhead", &ChainColumns::backward_overhead, "Bytes, shape [n].");
    bind_document(chain, "read_chain", "write_chain");
    chain
        .def_static(
            "from_csv",
            [](const py::object& path, const py::object& name, const py::object& resident,
               const py::object& provenance) {
                const py::object read = py::module_::import("memsched.readers.csv_files").attr("chain_from_csv");
                return read(path, "name"_a = name, "resident"_a = resident, "provenance"_a = provenance).cast<Chain>();
            },
            "path"_a, py::kw_only(), "name"_a = none, "resident"_a = 0, "provenance"_a = none,
            R"(Reads a CSV file: its first line names the columns, the next is the network's input, the rest are the stages.

Columns are forward_time, backward_time and activation, and optionally name, gradient, saved, forward_overhead,
transient_overhead, backward_overhead and resident. Cells are seconds and bytes, or texts such as 3 ms and 12MiB:

    name,forward_time,backward_time,activation
    image,,,4MiB
    conv,1 ms,2 ms,6MiB
)")
        .def_static(
            "from_frame",
            [](const py::object& frame, const py::object& name, const py::object& resident,
               const py::object& provenance) {
                const py::object read = py::module_::import("memsched.readers.tables").attr("chain_from_frame");
                return read(frame, "name"_a = name, "resident"_a = resident, "provenance"_a = provenance).cast<Chain>();
            },
            "frame"_a, py::kw_only(), "name"_a = none, "resident"_a = 0, "provenance"_a = none,
            "Reads a data frame of pandas or polars, or a dict of columns, as `from_csv` reads a file.");

    py::class_<Graph> graph(module, "Graph",
                            R"(One training step as ops and tensors, each tensor written once. Immutable.

Seconds and bytes may also be texts with units, such as "2 ms" and "6MiB".

Parameters
----------
tensors : sequence of dict
    {"name", "size" (bytes), "role": "input" | "weight" | "activation" | "gradient" | "persistent"}. A persistent tensor
    exists from training step to training step, and schedules of the graph are repeated: docs/schedule.md.
ops : sequence of dict, in a topological order
    {"name", "phase": "fwd" | "bwd", "reads", "writes", "choices": [{"alg", "time" (seconds), "workspace" (bytes)}]}, and
    optionally "kind", "layer", "once", "tape", "updates" (reads that it writes in place), "skip_workspace", "host_time"
    (seconds on the host, of an op that does nothing but update: it may run there).
name : str
batch : int
resident : int
    Bytes that never move.

Raises
------
InvalidInputError
    Naming the op or tensor at fault.
)");
    graph
        .def(py::init(&make_graph), "tensors"_a, "ops"_a, py::kw_only(), "name"_a = "graph", "batch"_a = 1,
             "resident"_a = 0)
        .def_property_readonly("name", &Graph::name)
        .def_property_readonly("batch", &Graph::batch)
        .def_property_readonly("resident", &Graph::resident, "Bytes that never move.")
        .def_property_readonly(
            "persistent",
            [](const Graph& g) {
                py::list names;
                for (const Tensor& tensor : g.tensors()) {
                    if (tensor.persistent()) {
                        names.append(tensor.name);
                    }
                }
                return py::tuple(names);
            },
            "Names of the persistent tensors. Where there are some, schedules of the graph are repeated.")
        .def_property_readonly("tensors", &tensors_of, "Tensors as dicts, as in the JSON form.")
        .def_property_readonly("ops", &ops_of, "Ops as dicts, as in the JSON form.")
        .def("__repr__", [](const Graph& g) {
            return "Graph(name='" + g.name() + "', ops=" + std::to_string(g.ops().size()) +
                   ", tensors=" + std::to_string(g.tensors().size()) + ")";
        });
    bind_document(graph, "read_graph", "write_graph");
    graph
        .def_static(
            "from_networkx",
            [](const py::object& digraph, const py::object& name, const py::object& batch, const py::object& resident) {
                const py::object read = py::module_::import("memsched.readers.digraph").attr("graph_from_networkx");
                return read(digraph, "name"_a = name, "batch"_a = batch, "resident"_a = resident).cast<Graph>();
            },
            "digraph"_a, py::kw_only(), "name"_a = none, "batch"_a = none, "resident"_a = none,
            "Makes a graph of a networkx.DiGraph, whose nodes are ops with `time` and `size`.")
        .def_static(
            "from_onnx",
            [](const py::object& source, const py::object& device, const py::object& dims, const py::object& times,
               const py::object& constants, const py::object& batch, const py::object& name) {
                const py::object read = py::module_::import("memsched.readers.onnx.model").attr("graph_from_onnx");
                return read(source, "device"_a = device, "dims"_a = dims, "times"_a = times, "constants"_a = constants,
                            "batch"_a = batch, "name"_a = name)
                    .cast<Graph>();
            },
            "source"_a, py::kw_only(), "device"_a = "v100", "dims"_a = none, "times"_a = none,
            "constants"_a = py::tuple(), "batch"_a = none, "name"_a = none,
            "Makes the graph of a training step of an ONNX model, its backward by a stated rule.");

    module.def("to_graph", &to_graph, py::call_guard<py::gil_scoped_release>(), "chain"_a, "chunk"_a = none);
    module.def("survives_json", [](const py::object& value) { return survives_json(value); }, "value"_a);
    module.def("graph_min_memory", &min_memory, "graph"_a, py::call_guard<py::gil_scoped_release>());
    module.def("graph_peak_memory", &peak_memory, "graph"_a, py::call_guard<py::gil_scoped_release>());
}

} // namespace memsched::bindings
