#include "memsched/bounds/steady_bound.h"

#include "memsched/bounds/travellers.h"
#include "memsched/model/lifetimes.h"

#include <algorithm>
#include <utility>

namespace memsched {
namespace {

Seconds seconds_of(Bytes bytes, Bandwidth bandwidth) {
    return bytes <= 0 ? 0 : bandwidth == 0 ? never : static_cast<double>(bytes) / bandwidth;
}

// What an op that may run on the host costs in each place, in seconds of the streams.
struct Place {
    Seconds device;          // of computation
    Seconds out = 0, in = 0; // of the link: what it reads must leave, what it changed come back
    Seconds host = 0;
};

// What only this op may read on the host, or change, is counted: it travels for no other.
std::vector<Place> places(const Graph& graph, const Device& device, const std::vector<Traveller>& each) {
    std::vector<std::int32_t> users(each.size(), 0), changes(each.size(), 0);
    for (const Op& op : graph.ops()) {
        for (const TensorId t : op.reads) {
            users[at(t)] += on_device(op) ? 0 : 1;
        }
        for (const TensorId t : op.updates) {
            ++changes[at(t)];
        }
    }
    std::vector<Place> found;
    for (const Op& op : graph.ops()) {
        if (on_device(op)) {
            continue;
        }
        Place place{fastest(op).time, 0, 0, *op.host_time};
        for (const TensorId t : op.reads) {
            if (users[at(t)] == 1 && !graph.tensor(t).persistent()) {
                place.out += seconds_of(graph.tensor(t).bytes, device.d2h);
            }
        }
        for (const TensorId t : op.updates) {
            if (changes[at(t)] == 1) {
                place.in += seconds_of(each[at(t)].all, device.h2d);
            }
        }
        found.push_back(place);
    }
    return found;
}

// The least of the larger of two loads, if any part of an op may run in either place: `known` on the device beside what
// runs there, and a sum on another stream. ops: their seconds on the device, and on that stream. Nothing is subtracted,
// as seconds may differ by many orders of magnitude.
Seconds balanced(std::vector<std::pair<Seconds, Seconds>> ops, Seconds known) {
    std::erase_if(ops, [](const auto& one) { return one.first == 0; });
    // What costs least for what it saves comes first.
    std::ranges::sort(ops, {}, [](const auto& one) { return std::pair(one.second / one.first, one.first); });
    std::vector<Seconds> left(ops.size() + 1, known); // on the device, if the ops before are not
    for (std::size_t k = ops.size(); k-- > 0;) {
        left[k] = left[k + 1] + ops[k].first;
    }
    Seconds there = 0;
    for (std::size_t k = 0; k < ops.size(); ++k) {
        const auto& [seconds, cost] = ops[k];
        if (left[k] <= there || cost >= never) {
            return left[k];
        }
        if (left[k + 1] <= there + cost) { // only a part of it
            const Seconds both = seconds + cost, most = std::min(left[k], there + cost);
            const Seconds here = cost < seconds ? cost * (left[k] / both) : left[k] * (cost / both);
            const Seconds rest = seconds < cost ? seconds * (there / both) : there * (seconds / both);
            return std::max(std::min(most, here + rest), known);
        }
        there += cost;
    }
    return known;
}

} // namespace

Bounds steady_bounds(const Graph& graph, const Device& device, Bytes budget) {
    const Bytes capacity = std::min(budget, device.memory) - graph.resident();
    const Lifetimes lifetimes(graph);
    const std::vector<Traveller> each = travellers(graph);
    Traveller sum;
    for (const Traveller& one : each) {
        sum += one;
    }
    Bounds bounds;
    for (std::size_t k = 0; k < graph.ops().size(); ++k) {
        const Op& op = graph.ops()[k];
        if (!on_device(op)) {
            continue;
        }
        Traveller beside = sum;
        for (const TensorId t : op.reads) {
            beside -= each[at(t)];
        }
        bounds.compute += fastest(op).time;
        const Bytes away = lifetimes.need[k] + beside.all - capacity;
        const Seconds in = seconds_of(away, device.h2d);
        const Seconds out = seconds_of(away - (beside.all - beside.changed), device.d2h);
        bounds.transfer = std::max(bounds.transfer, device.duplex ? std::max(in, out) : in + out);
    }
    std::vector<std::pair<Seconds, Seconds>> out, in, host;
    for (const Place& place : places(graph, device, each)) {
        out.emplace_back(place.device, device.duplex ? place.out : place.out + place.in);
        in.emplace_back(place.device, device.duplex ? place.in : place.out + place.in);
        host.emplace_back(place.device, place.host);
    }
    const Seconds known = bounds.compute;
    for (auto* there : {&out, &in, &host}) {
        bounds.compute = std::max(bounds.compute, balanced(std::move(*there), known));
    }
    bounds.fractional = lifetimes.least > capacity ? never : std::max(bounds.compute, bounds.transfer);
    return bounds;
}

} // namespace memsched
