// Graph: one training step as ops and tensors in single assignment form. Immutable and checked on construction.
#pragma once

#include "memsched/support/id_lists.h"
#include "memsched/support/progress.h"
#include "memsched/support/units.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace memsched {

enum class Role { input, weight, activation, gradient, persistent };
enum class Phase { forward, backward };

struct Tensor {
    std::string name;
    Bytes bytes = 0;
    Role role = Role::activation;

    bool persistent() const { return role == Role::persistent; } // exists from one training step to the next
    // Whether it exists from the start, so that no op brings it. Where a persistent one is then, its schedule says;
    // others are on the device.
    bool source() const { return role == Role::input || role == Role::weight || persistent(); }

    bool operator==(const Tensor&) const = default;
};

// One way to run an op. The first choice of an op is its baseline.
struct Choice {
    std::string alg = "default";
    Seconds time = 0;
    Bytes workspace = 0;

    bool operator==(const Choice&) const = default;
};

struct Op {
    std::string name;
    Phase phase = Phase::forward;
    std::string kind;
    int layer = 0;
    std::vector<TensorId> reads;
    std::vector<TensorId> writes;
    std::vector<Choice> choices;
    bool once = false;                   // may run only once
    std::vector<TensorId> tape;          // writes that a run may skip, all or none
    std::vector<TensorId> updates;       // reads that it writes in place: persistent tensors
    std::optional<Bytes> skip_workspace; // workspace of a run that skips its tape; none: the choice's own
    std::optional<Seconds> host_time;    // on the host, of an op that does nothing but update; none: not there

    bool operator==(const Op&) const = default;
};

struct GraphData {
    std::string name = "graph";
    std::int64_t batch = 1;
    Bytes resident = 0;
    std::vector<Tensor> tensors;
    std::vector<Op> ops; // in a topological order

    bool operator==(const GraphData&) const = default;
};

// Invariants: names unique; sources have no writer, all others exactly one; every read is of a source or of a tensor
// written by an earlier op; tape within writes; updates within reads, of persistent tensors, by ops that run once;
// what may run on the host has updates, and no writes with bytes; each op has a choice; sums up to exact_bytes.
class Graph {
  public:
    // Throws Stopped when told to stop.
    explicit Graph(GraphData data, const Progress& progress = {});

    const std::string& name() const { return data_.name; }
    std::int64_t batch() const { return data_.batch; }
    Bytes resident() const { return data_.resident; }
    const std::vector<Tensor>& tensors() const { return data_.tensors; }
    const std::vector<Op>& ops() const { return data_.ops; }
    OpId writer(TensorId tensor) const { return writer_[at(tensor)]; } // -1: a source
    bool persistent() const { return persistent_; }                    // whether some tensor is
    // How many of the ops listed before this one update the tensor: the version that the op reads.
    std::int32_t version(OpId op, TensorId tensor) const;
    bool taped(TensorId tensor) const { return taped_[at(tensor)] != 0; } // in its writer's tape
    bool read(TensorId tensor) const { return read_[at(tensor)] != 0; }   // by some op
    // A result of the step, which no op reads; on a tape it is none.
    bool is_result(TensorId tensor) const { return writer(tensor) >= 0 && !read(tensor) && !taped(tensor); }
    // Whether its writer may run again.
    bool repeatable(TensorId tensor) const { return writer(tensor) >= 0 && !op(writer(tensor)).once; }

    const Tensor& tensor(TensorId id) const { return data_.tensors[at(id)]; }
    const Op& op(OpId id) const { return data_.ops[at(id)]; }

    // The same graph, whose ops have one choice each: by op, its index here.
    Graph with_choices(std::span<const std::int32_t> choice) const;

    bool operator==(const Graph& other) const { return data_ == other.data_; }

  private:
    GraphData data_;
    std::vector<OpId> writer_;
    std::vector<std::uint8_t> taped_, read_;
    bool persistent_ = false;
    std::vector<std::vector<OpId>> updaters_; // by tensor, if some are persistent
};

Bytes workspace(const Op& op, int choice, bool skip);

// What a run holds in addition to its reads: writes, without the tape if it skips, and workspace.
Bytes run_bytes(const Graph& graph, const Op& op, bool skip, int choice = 0);

// The choice with the least workspace, the first on ties.
std::int32_t baseline(const Op& op);

// The fastest choice whose workspace is within `room`, with the least workspace of several; if none is, the one with
// the least workspace.
std::int32_t fastest_within(const Op& op, bool skip, Bytes room);

// The run of an op that holds the least in addition to its reads: with the baseline, and without its tape if nobody
// wants any of it and that holds less. In every plan some run of the op holds this much. Wanted are tensors that ops
// read and those in `keep`: one entry per tensor, or empty.
struct LeastRun {
    bool skip = false;
    Bytes bytes = 0; // writes and workspace
};

LeastRun least_run(const Graph& graph, const Op& op, const std::vector<std::uint8_t>& keep = {});

// The fastest choice, the first on ties.
const Choice& fastest(const Op& op);

// Seconds of all ops on the device, each once with its fastest choice.
Seconds compute_time(const Graph& graph);

Bytes bytes_of(const Graph& graph, const std::vector<TensorId>& tensors);

// Bytes of all outputs of an op, including its tape.
inline Bytes written_bytes(const Graph& graph, const Op& op) { return bytes_of(graph, op.writes); }

// Whether all is the same but numbers: bytes, times and workspaces.
bool same_shape(const Graph& one, const Graph& other);

// What needs more bytes in the first of two graphs of the same shape than in the second; empty: nothing.
std::string shrinks(const Graph& small, const Graph& large);

// By tensor: the ops that read it, from op `first` on, in the order of the graph.
IdLists readers_of(const Graph& graph, OpId first = 0);

// Bytes of all sources.
Bytes source_bytes(const Graph& graph);

Bytes persistent_bytes(const Graph& graph);

} // namespace memsched
