// What holds for lists that are repeated without end: where persistent tensors begin, they end, each op reads the
// version that it is to read, and updates may run on the host.
#include "memsched/simulate/simulate.h"

#include <vector>

namespace memsched {

void Simulator::start_at_border(const StepList& list) {
    for (const auto& [tensor, copies] : list.border) {
        if (copies != Copies::device) {
            const Bytes bytes = graph_.tensor(tensor).bytes;
            TensorState& state = tensors_[at(tensor)];
            state.host = 0;
            state.kept = true;
            host_bytes_ += bytes;
            state.on_device = copies == Copies::both;
            at_start_ -= state.on_device ? 0 : bytes;
        }
    }
}

bool Simulator::begins() {
    if (live_ > capacity_) {
        return fail([&] {
            return "the inputs and weights need " + std::to_string(live_) +
                   " bytes at time 0, and the budget less what "
                   "is resident is " +
                   std::to_string(capacity_) + "; give more memory";
        });
    }
    if (graph_.persistent() && list_->contiguous()) {
        return fail([] { return "a plan of a graph with persistent tensors has no addresses; make it fluid"; });
    }
    if (device_.host_memory && host_bytes_ > *device_.host_memory) {
        return fail([&] {
            return "the border has " + std::to_string(host_bytes_) +
                   " bytes on the host, over host_memory = " + std::to_string(*device_.host_memory);
        });
    }
    return true;
}

bool Simulator::updates_in_order(OpId id) {
    const Op& op = graph_.op(id);
    for (const TensorId t : op.reads) {
        const std::int32_t version = graph_.version(id, t), found = tensors_[at(t)].version;
        if (version != found) {
            return fail([&] {
                return "run '" + op.name + "' reads '" + graph_.tensor(t).name + "' after " + std::to_string(found) +
                       " of its updates, but the graph lists " + std::to_string(version) +
                       " before that op; keep reads and updates of a persistent tensor in the graph's order";
            });
        }
    }
    return true;
}

// What it reads and updates are host copies, so that it needs no memory of the device.
bool Simulator::update_on_host(OpId id, Seconds& start) {
    const Op& op = graph_.op(id);
    if (!op.host_time) {
        return fail([&] { return "op '" + op.name + "' has no host_time, so it cannot run on the host; run it"; });
    }
    if (ran_[at(id)]) {
        return fail([&] { return "op '" + op.name + "' may run only once; it ran before"; });
    }
    for (const TensorId t : op.reads) {
        if (tensors_[at(t)].host < 0) {
            return fail([&] {
                return "update '" + op.name + "' reads '" + graph_.tensor(t).name +
                       "', which has no host copy, or a stale one; offload it before";
            });
        }
        start = std::max(start, tensors_[at(t)].host);
    }
    if (!updates_in_order(id)) {
        return false;
    }
    stream_free_[3] = start + *op.host_time;
    for (const TensorId t : op.updates) {
        TensorState& state = tensors_[at(t)];
        if (state.on_device) {
            return fail([&] {
                return "update '" + op.name + "' changes '" + graph_.tensor(t).name +
                       "', whose copy on the device would be stale; free it before";
            });
        }
        state.host = stream_free_[3];
        ++state.version;
    }
    for (const TensorId t : op.writes) { // without bytes
        tensors_[at(t)].host = stream_free_[3];
    }
    ran_[at(id)] = 1;
    return true;
}

bool Simulator::ends_as_it_began() {
    std::vector<Copies> border(tensors_.size(), Copies::device);
    for (const auto& [tensor, copies] : list_->border) {
        border[at(tensor)] = copies;
    }
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const Tensor& tensor = graph_.tensors()[t];
        const bool here = tensor.source() && border[t] != Copies::host;
        if (tensors_[t].on_device != here) {
            return fail([&] {
                return "'" + tensor.name + "' ends " + (here ? "off" : "on") + " the device and starts " +
                       (here ? "on" : "off") + " it, but the list is repeated; " + (here ? "prefetch" : "free") +
                       " it before the end, or change the border";
            });
        }
        if (border[t] != Copies::device && tensors_[t].host < 0) {
            return fail([&] {
                return "'" + tensor.name + "' ends with a stale copy on the host, as an op has updated it; offload it";
            });
        }
    }
    return true;
}

} // namespace memsched
