// What of a repeated list must be on the device in each repetition, and so must travel in each if it ever leaves.
#pragma once

#include "memsched/model/graph.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace memsched {

inline bool on_device(const Op& op) { return !op.host_time; } // in any case

struct Traveller {
    Bytes all = 0;     // bytes that must be on the device in each repetition
    Bytes changed = 0; // and of these, what can leave it only by an offload in each

    Traveller& operator+=(const Traveller& other) {
        all += other.all;
        changed += other.changed;
        return *this;
    }
    Traveller& operator-=(const Traveller& other) {
        all -= other.all;
        changed -= other.changed;
        return *this;
    }
};

// By tensor. A persistent one travels if some op reads it on the device, other sources as they are there at the border.
// Zero without persistent tensors, as then nothing is repeated.
inline std::vector<Traveller> travellers(const Graph& graph) {
    std::vector<Traveller> found(graph.tensors().size());
    if (!graph.persistent()) {
        return found;
    }
    for (std::size_t t = 0; t < found.size(); ++t) {
        const Tensor& tensor = graph.tensors()[t];
        if (tensor.source() && !tensor.persistent()) {
            found[t] = {tensor.bytes, tensor.bytes};
        }
    }
    for (const Op& op : graph.ops()) {
        for (const TensorId t : on_device(op) ? op.reads : std::vector<TensorId>{}) {
            if (graph.tensor(t).persistent()) {
                found[at(t)].all = graph.tensor(t).bytes;
            }
        }
    }
    for (const Op& op : graph.ops()) {
        for (const TensorId t : on_device(op) ? op.updates : std::vector<TensorId>{}) {
            found[at(t)].changed = graph.tensor(t).bytes;
        }
    }
    return found;
}

// Ops that change persistent tensors on the device, but for those that change the least: a thousandth of all bytes that
// change, together. A counter of the steps says little about when the rest changes.
struct LargeUpdates {
    static constexpr std::size_t most = 4096; // with more, it would take long to find the ops before all

    explicit LargeUpdates(const Graph& graph) : before_all(graph.ops().size(), 0) {
        std::vector<Bytes> bytes(graph.ops().size(), 0);
        Bytes left = 0;
        for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
            if (on_device(graph.op(op)) && !graph.op(op).updates.empty()) {
                ops.push_back(op);
                bytes[at(op)] = bytes_of(graph, graph.op(op).updates);
                left += bytes[at(op)] / 1000;
            }
        }
        std::ranges::stable_sort(ops, {}, [&](OpId op) { return bytes[at(op)]; });
        std::size_t least = 0;
        while (least < ops.size() && bytes[at(ops[least])] <= left) {
            left -= bytes[at(ops[least++])];
        }
        ops.erase(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(least));
        if (!ops.empty() && ops.size() <= most) {
            find_before_all(graph);
        }
    }

    std::vector<OpId> ops;
    std::vector<std::uint8_t> before_all; // by op: whether all of these depend on it

  private:
    void find_before_all(const Graph& graph) {
        before_all.assign(before_all.size(), 1);
        for (std::size_t first = 0; first < ops.size(); first += 64) { // a bit for each
            std::vector<std::uint64_t> own(before_all.size(), 0), behind(before_all.size(), 0);
            std::uint64_t all = 0;
            for (std::size_t k = first; k < std::min(ops.size(), first + 64); ++k) {
                all |= own[at(ops[k])] = std::uint64_t{1} << (k - first);
            }
            for (std::size_t op = before_all.size(); op-- > 0;) {
                for (const TensorId t : graph.ops()[op].reads) {
                    if (graph.writer(t) >= 0) {
                        behind[at(graph.writer(t))] |= behind[op] | own[op];
                    }
                }
                before_all[op] &= behind[op] == all;
            }
        }
    }
};

} // namespace memsched
