#include "memsched/model/graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_set>

namespace memsched {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

Bytes check_tensors(const GraphData& g, Pace& pace) { // the sum of all sizes
    std::unordered_set<std::string_view> seen;
    seen.reserve(g.tensors.size());
    Bytes total = g.resident;
    for (std::size_t i = 0; i < g.tensors.size(); ++i) {
        pace.spend(Pace::named);
        const Tensor& t = g.tensors[i];
        const auto where = [&] { return "tensors[" + std::to_string(i) + "]"; };
        if (t.name.empty()) {
            fail(where() + " has an empty name; name every tensor");
        }
        if (!seen.insert(t.name).second) {
            fail(where() + " is named '" + t.name + "' like an earlier tensor; names must be unique");
        }
        if (t.bytes < 0) {
            fail("tensor '" + t.name + "' has size " + std::to_string(t.bytes) + "; sizes must be >= 0 bytes");
        }
        total = checked_add(total, t.bytes, [&] { return "tensor '" + t.name + "' and the other sizes of the graph"; });
    }
    return total;
}

void check_choices(const Op& op, Bytes total) {
    if (op.choices.empty()) {
        fail("op '" + op.name + "' has no choices; give at least one {alg, time, workspace}");
    }
    std::unordered_set<std::string_view> algs;
    for (const Choice& c : op.choices) {
        const auto where = [&] { return "op '" + op.name + "', choice '" + c.alg + "'"; };
        if (c.alg.empty()) {
            fail(where() + " has an empty name; name every algorithm");
        }
        if (!algs.insert(c.alg).second) {
            fail(where() + " is listed twice; algorithm names must be unique within an op");
        }
        if (!std::isfinite(c.time) || c.time < 0) {
            fail(where() + ": time is " + show(c.time) + "; a time must be a finite number of seconds >= 0");
        }
        check_size(c.workspace, [&] { return where() + ": workspace"; });
        checked_add(total, c.workspace, [&] { return where() + ": workspace and the tensors of the graph"; });
    }
    const Bytes skipping = op.skip_workspace.value_or(0);
    check_size(skipping, [&] { return "op '" + op.name + "': skip_workspace"; });
    checked_add(total, skipping, [&] { return "op '" + op.name + "': skip_workspace and the tensors of the graph"; });
}

// Op i reads a tensor that no earlier op writes. Its writer is missing, later, or itself waits for op i.
[[noreturn]] void refuse_late_write(const GraphData& g, std::size_t i, TensorId tensor) {
    const std::string what = "op '" + g.ops[i].name + "' reads '" + g.tensors[at(tensor)].name + "', which ";
    std::vector<OpId> writer(g.tensors.size(), -1);
    for (std::size_t k = 0; k < g.ops.size(); ++k) {
        for (const TensorId t : g.ops[k].writes) {
            if (t >= 0 && at(t) < writer.size()) {
                writer[at(t)] = static_cast<OpId>(k);
            }
        }
    }
    const OpId later = writer[at(tensor)];
    if (later < 0) {
        fail(what + "no op writes; add its writer, or give it the role input");
    }
    std::vector<std::uint8_t> seen(g.ops.size(), 0);
    std::vector<OpId> stack{later};
    while (!stack.empty()) { // the ops that the writer waits for
        const auto k = at(stack.back());
        stack.pop_back();
        if (k == i) {
            fail(what + "'" + g.ops[at(later)].name +
                 "' writes only after it: the ops form a cycle; a graph must have none");
        }
        for (const TensorId t : seen[k] ? std::vector<TensorId>{} : g.ops[k].reads) {
            if (t >= 0 && at(t) < writer.size() && writer[at(t)] >= 0) {
                stack.push_back(writer[at(t)]);
            }
        }
        seen[k] = 1;
    }
    fail(what + "no earlier op writes; list ops in a topological order");
}

void check_updates(const GraphData& g, const Op& op) {
    std::unordered_set<TensorId> seen;
    for (const TensorId t : op.updates) {
        if (std::ranges::find(op.reads, t) == op.reads.end() || !seen.insert(t).second) {
            fail("op '" + op.name + "' updates a tensor that it does not read, or has it twice; list it in reads, too");
        }
        if (!g.tensors[at(t)].persistent()) {
            fail("op '" + op.name + "' updates '" + g.tensors[at(t)].name +
                 "', which is not persistent; only a tensor " + "of role persistent is written in place");
        }
    }
    if (!op.updates.empty() && !op.once) {
        fail("op '" + op.name + "' updates tensors and may run again; set once: a second run would update them twice");
    }
    if (!op.host_time) {
        return;
    }
    if (op.updates.empty()) {
        fail("op '" + op.name + "' has a host_time, but updates nothing; only an op that does nothing but update " +
             "persistent tensors may run on the host");
    }
    for (const TensorId t : op.writes) {
        if (g.tensors[at(t)].bytes > 0) {
            fail("op '" + op.name + "' has a host_time, but writes '" + g.tensors[at(t)].name + "' of " +
                 std::to_string(g.tensors[at(t)].bytes) + " bytes; only an op that does nothing but update " +
                 "persistent tensors may run on the host");
        }
    }
    if (!std::isfinite(*op.host_time) || *op.host_time < 0) {
        fail("op '" + op.name + "': host_time is " + show(*op.host_time) +
             "; a time must be a finite number of seconds >= 0");
    }
}

std::vector<OpId> check_ops(const GraphData& g, Bytes total, Pace& pace) {
    Seconds compute = 0;
    std::vector<OpId> writer(g.tensors.size(), -1);
    std::vector<OpId> reader(g.tensors.size(), -1); // the last op seen reading a tensor
    std::unordered_set<std::string_view> seen;
    const auto known = [&](TensorId t) { return t >= 0 && at(t) < g.tensors.size(); };
    for (std::size_t i = 0; i < g.ops.size(); ++i) {
        pace.spend(Pace::named);
        const Op& op = g.ops[i];
        if (op.name.empty() || !seen.insert(op.name).second) {
            fail("ops[" + std::to_string(i) + "] is named '" + op.name + "'; op names must be unique and not empty");
        }
        check_choices(op, total);
        const Seconds slowest = std::ranges::max(op.choices, {}, &Choice::time).time;
        compute += slowest;
        if (compute > most_seconds) {
            fail("op '" + op.name + "' takes " + show(slowest) + ", with which the times add up to over " +
                 show(most_seconds) + "; use a coarser unit");
        }
        for (const TensorId t : op.reads) {
            if (!known(t)) {
                fail("op '" + op.name + "' reads an unknown tensor");
            }
            const Tensor& tensor = g.tensors[at(t)];
            if (!tensor.source() && writer[at(t)] < 0) {
                refuse_late_write(g, i, t);
            }
            if (reader[at(t)] == static_cast<OpId>(i)) {
                fail("op '" + op.name + "' reads '" + tensor.name + "' twice; list each tensor once");
            }
            reader[at(t)] = static_cast<OpId>(i);
        }
        for (const TensorId t : op.writes) {
            if (!known(t)) {
                fail("op '" + op.name + "' writes an unknown tensor");
            }
            const Tensor& tensor = g.tensors[at(t)];
            if (tensor.source()) {
                fail("op '" + op.name + "' writes '" + tensor.name +
                     (tensor.persistent() ? "', which is persistent; list it in reads and updates"
                                          : "', an input; inputs have no writer"));
            }
            if (writer[at(t)] >= 0) {
                fail("op '" + op.name + "' writes '" + tensor.name + "', which an earlier op or entry writes already");
            }
            writer[at(t)] = static_cast<OpId>(i);
        }
        std::unordered_set<TensorId> tape;
        for (const TensorId t : op.tape) {
            if (!known(t) || writer[at(t)] != static_cast<OpId>(i) || !tape.insert(t).second) {
                fail("op '" + op.name + "' has a tape entry that it does not write, or has it twice");
            }
        }
        check_updates(g, op);
    }
    for (std::size_t t = 0; t < g.tensors.size(); ++t) {
        if (writer[t] < 0 && !g.tensors[t].source()) {
            fail("tensor '" + g.tensors[t].name + "' has no writer; give it the role input or an op that writes it");
        }
    }
    return writer;
}

} // namespace

Graph::Graph(GraphData data, const Progress& progress) : data_(std::move(data)) {
    Pace pace(progress);
    if (data_.batch < 1) {
        fail("batch is " + std::to_string(data_.batch) + "; it must be >= 1");
    }
    check_size(data_.resident, [] { return "resident"; });
    if (data_.ops.empty()) {
        fail("ops is empty; a graph has at least one op");
    }
    const Bytes total = check_tensors(data_, pace);
    writer_ = check_ops(data_, total, pace);
    taped_.assign(data_.tensors.size(), 0);
    read_ = taped_;
    for (const Op& op : data_.ops) {
        for (const TensorId t : op.tape) {
            taped_[at(t)] = 1;
        }
        for (const TensorId t : op.reads) {
            read_[at(t)] = 1;
        }
    }
    persistent_ = std::ranges::any_of(data_.tensors, &Tensor::persistent);
    if (persistent_) {
        updaters_.resize(data_.tensors.size());
        for (OpId id = 0; at(id) < data_.ops.size(); ++id) {
            for (const TensorId t : op(id).updates) {
                updaters_[at(t)].push_back(id);
            }
        }
    }
}

std::int32_t Graph::version(OpId op, TensorId tensor) const {
    const std::vector<OpId>& all = updaters_[at(tensor)];
    return static_cast<std::int32_t>(std::ranges::lower_bound(all, op) - all.begin());
}

Graph Graph::with_choices(std::span<const std::int32_t> choice) const {
    Graph graph = *this;
    for (std::size_t k = 0; k < choice.size(); ++k) {
        std::vector<Choice>& choices = graph.data_.ops[k].choices;
        choices = {choices[at(choice[k])]};
    }
    return graph;
}

Bytes workspace(const Op& op, int choice, bool skip) {
    return skip && op.skip_workspace ? *op.skip_workspace : op.choices[at(choice)].workspace;
}

Bytes run_bytes(const Graph& graph, const Op& op, bool skip, int choice) {
    return written_bytes(graph, op) - (skip ? bytes_of(graph, op.tape) : 0) + workspace(op, choice, skip);
}

std::int32_t baseline(const Op& op) {
    return static_cast<std::int32_t>(std::ranges::min_element(op.choices, {}, &Choice::workspace) - op.choices.begin());
}

std::int32_t fastest_within(const Op& op, bool skip, Bytes room) {
    const auto rank = [&](std::int32_t k) {
        const Bytes need = workspace(op, k, skip);
        return std::tuple(need > room ? need : 0, op.choices[at(k)].time, need);
    };
    std::int32_t best = 0;
    for (std::int32_t k = 1; k < static_cast<std::int32_t>(op.choices.size()); ++k) {
        best = rank(k) < rank(best) ? k : best;
    }
    return best;
}

LeastRun least_run(const Graph& graph, const Op& op, const std::vector<std::uint8_t>& keep) {
    const std::int32_t choice = baseline(op);
    LeastRun least{false, run_bytes(graph, op, false, choice)};
    const auto wanted = [&](TensorId t) { return graph.read(t) || (!keep.empty() && keep[at(t)]); };
    if (!op.tape.empty() && std::ranges::none_of(op.tape, wanted)) {
        if (const Bytes bytes = run_bytes(graph, op, true, choice); bytes < least.bytes) {
            least = {true, bytes};
        }
    }
    return least;
}

const Choice& fastest(const Op& op) { return *std::ranges::min_element(op.choices, {}, &Choice::time); }

Seconds compute_time(const Graph& graph) {
    Seconds sum = 0;
    for (const Op& op : graph.ops()) {
        sum += fastest(op).time;
    }
    return sum;
}

Bytes bytes_of(const Graph& graph, const std::vector<TensorId>& tensors) {
    Bytes sum = 0;
    for (const TensorId t : tensors) {
        sum += graph.tensor(t).bytes;
    }
    return sum;
}

bool same_shape(const Graph& one, const Graph& other) {
    const auto tensors = [](const Tensor& a, const Tensor& b) {
        return std::tie(a.name, a.role) == std::tie(b.name, b.role);
    };
    const auto ops = [](const Op& a, const Op& b) {
        const auto fixed = [](const Op& op) {
            return std::tie(op.name, op.phase, op.kind, op.layer, op.reads, op.writes, op.once, op.tape, op.updates);
        };
        return fixed(a) == fixed(b) && a.skip_workspace.has_value() == b.skip_workspace.has_value() &&
               a.host_time.has_value() == b.host_time.has_value() &&
               std::ranges::equal(a.choices, b.choices, {}, &Choice::alg, &Choice::alg);
    };
    return std::ranges::equal(one.tensors(), other.tensors(), tensors) &&
           std::ranges::equal(one.ops(), other.ops(), ops);
}

std::string shrinks(const Graph& small, const Graph& large) {
    if (small.resident() > large.resident()) {
        return "resident";
    }
    for (std::size_t t = 0; t < small.tensors().size(); ++t) {
        if (small.tensors()[t].bytes > large.tensors()[t].bytes) {
            return small.tensors()[t].name;
        }
    }
    const auto more = [](const Choice& a, const Choice& b) { return a.workspace > b.workspace; };
    for (std::size_t k = 0; k < small.ops().size(); ++k) {
        const Op &a = small.ops()[k], &b = large.ops()[k];
        if (a.skip_workspace.value_or(0) > b.skip_workspace.value_or(0) ||
            !std::ranges::equal(a.choices, b.choices, std::not_fn(more))) {
            return a.name;
        }
    }
    return {};
}

IdLists readers_of(const Graph& graph, OpId first) {
    return IdLists(graph.tensors().size(), [&](const auto& put) {
        for (OpId op = first; at(op) < graph.ops().size(); ++op) {
            for (const TensorId t : graph.op(op).reads) {
                put(at(t), op);
            }
        }
    });
}

Bytes source_bytes(const Graph& graph) {
    Bytes bytes = 0;
    for (const Tensor& tensor : graph.tensors()) {
        bytes += tensor.source() ? tensor.bytes : 0;
    }
    return bytes;
}

Bytes persistent_bytes(const Graph& graph) {
    Bytes bytes = 0;
    for (const Tensor& tensor : graph.tensors()) {
        bytes += tensor.persistent() ? tensor.bytes : 0;
    }
    return bytes;
}

} // namespace memsched
