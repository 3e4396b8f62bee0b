#include "memsched/bounds/retention.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace memsched {
namespace {

constexpr double most_capacity = 0x1p58; // of all edges with a price together, so that flows are exact

std::size_t count_nodes(const Graph& graph) { return 2 + graph.ops().size() + graph.tensors().size(); }

} // namespace

std::vector<Retention::Side> Retention::sides(Order order) const {
    const std::size_t ops = graph_.ops().size();
    std::vector<Side> side(ops, Side::either);
    if (order == Order::listed) {
        std::fill_n(side.begin(), at(p_), Side::earlier);
        std::fill(side.begin() + p_, side.end(), Side::later);
        return side;
    }
    side[at(p_)] = Side::earlier;
    for (OpId op = p_; op >= 0; --op) {
        for (const TensorId t : side[at(op)] == Side::earlier ? graph_.op(op).reads : std::vector<TensorId>{}) {
            if (graph_.writer(t) >= 0) {
                side[at(graph_.writer(t))] = Side::earlier;
            }
        }
    }
    side[at(p_)] = Side::later;
    for (std::size_t op = at(p_) + 1; op < ops; ++op) {
        for (const TensorId t : graph_.ops()[op].reads) {
            if (graph_.writer(t) >= 0 && side[at(graph_.writer(t))] == Side::later) {
                side[op] = Side::later;
            }
        }
    }
    return side;
}

Retention::Retention(const Graph& graph, OpId p, Order order, const LargeUpdates* changes)
    : graph_(graph), p_(p), node_of_op_(graph.ops().size(), -1), node_of_tensor_(graph.tensors().size(), -1),
      cut_(count_nodes(graph)) {
    const std::size_t ops = graph.ops().size();
    const std::vector<Side> side = sides(order);
    for (std::size_t op = 0; op < ops; ++op) {
        const Seconds time = on_device(graph.ops()[op]) ? fastest(graph.ops()[op]).time : 0;
        before_ += side[op] == Side::earlier ? time : 0;
        after_ += side[op] == Side::later ? time : 0;
    }
    const std::vector<std::uint8_t> fixed = flags_of(graph.tensors().size(), graph.op(p).reads);
    needed_ = reads_ = bytes_of(graph, graph.op(p).reads);
    find_own();

    // Nodes: 0 the source, 1 the sink, one for each tensor (wanted on the source's side), and one for each op (it runs
    // at p or later on the source's side). Tensors that p reads are there, and cost nothing.
    std::int32_t nodes = 2;
    std::vector<TensorId> open;
    const auto want = [&](TensorId t) {
        if (!fixed[at(t)] && graph.tensor(t).bytes > 0 && node_of_tensor_[at(t)] < 0) {
            node_of_tensor_[at(t)] = nodes++;
            open.push_back(t);
        }
        return node_of_tensor_[at(t)];
    };
    const auto need = [&](TensorId t) {
        if (node_of_tensor_[at(t)] < 0 && want(t) >= 0) {
            add_edge(0, node_of_tensor_[at(t)], {0, 0, true, {}});
            needed_ += graph.tensor(t).bytes;
        }
    };
    for (std::size_t op = at(p) + 1; op < ops; ++op) {
        const bool reads = side[op] == Side::later && on_device(graph.ops()[op]);
        for (const TensorId t : reads ? graph.ops()[op].reads : std::vector<TensorId>{}) {
            if (graph.writer(t) < 0 || side[at(graph.writer(t))] != Side::later) {
                need(t);
            }
        }
    }
    for (const TensorId t : find_travel(side, changes)) {
        need(t);
    }
    while (!open.empty()) {
        const TensorId t = open.back();
        open.pop_back();
        tensors_.push_back(t);
        most_held_ += graph.tensor(t).bytes;
        const OpId writer = graph.writer(t);
        const bool again = writer >= 0 && side[at(writer)] == Side::earlier;
        if (writer < 0 || (again && graph.op(writer).once)) {
            add_edge(node_of_tensor_[at(t)], 1, {0, graph.tensor(t).bytes, false, {-1, t, 0}});
            continue;
        }
        const bool first = node_of_op_[at(writer)] < 0;
        if (first) {
            node_of_op_[at(writer)] = nodes++;
            if (again) {
                ops_.push_back(writer);
                most_again_ += fastest(graph.op(writer)).time;
                add_edge(node_of_op_[at(writer)], 1, {fastest(graph.op(writer)).time, 0, false, {}});
            }
        }
        add_edge(node_of_tensor_[at(t)], node_of_op_[at(writer)], {0, graph.tensor(t).bytes, false, {-1, t, 0}});
        if (first) {
            for (const TensorId read : graph.op(writer).reads) {
                if (want(read) >= 0) {
                    add_edge(node_of_op_[at(writer)], node_of_tensor_[at(read)], {0, 0, true, {writer, read, 0}});
                }
            }
        }
    }
}

// What travels, but for what p reads.
std::vector<TensorId> Retention::find_travel(const std::vector<Side>& side, const LargeUpdates* changes) {
    std::vector<TensorId> found;
    if (!graph_.persistent()) {
        return found;
    }
    const std::vector<Traveller> each = travellers(graph_);
    std::vector<std::uint8_t> read(each.size(), 0), changed(each.size(), 0), changed_earlier(each.size(), 0);
    for (std::size_t op = 0; op < graph_.ops().size(); ++op) {
        for (const TensorId t : on_device(graph_.ops()[op]) ? graph_.ops()[op].reads : std::vector<TensorId>{}) {
            read[at(t)] |= side[op] == Side::later;
        }
        for (const TensorId t : on_device(graph_.ops()[op]) ? graph_.ops()[op].updates : std::vector<TensorId>{}) {
            changed_earlier[at(t)] |= side[op] == Side::earlier;
        }
    }
    for (const OpId op : changes ? changes->ops : std::vector<OpId>{}) {
        for (const TensorId t : graph_.op(op).updates) {
            changed[at(t)] = 1;
        }
    }
    for (const TensorId t : graph_.op(p_).reads) {
        read[at(t)] = 2;
    }
    for (TensorId t = 0; at(t) < each.size(); ++t) {
        const Bytes bytes = each[at(t)].all;
        if (bytes > 0 && read[at(t)] < 2) {
            found.push_back(t);
            travel_.all += bytes;
            travel_.back_later += read[at(t)] ? bytes : 0;
            travel_.out_earlier += changed_earlier[at(t)] ? bytes : 0;
            travel_.out += each[at(t)].changed;
            travel_.changed += changed[at(t)] ? bytes : 0;
        }
    }
    for (std::size_t op = 0; changes && changes->before_all[at(p_)] && op < graph_.ops().size(); ++op) {
        const bool between = changes->before_all[op] && side[op] == Side::later && on_device(graph_.ops()[op]);
        travel_.quiet += between ? fastest(graph_.ops()[op]).time : 0;
    }
    return found;
}

void Retention::find_own() {
    const Op& op = graph_.op(p_);
    const bool wanted = std::ranges::any_of(op.tape, [&](TensorId t) { return graph_.read(t); });
    own_ = run_bytes(graph_, op, false, baseline(op));
    if (!op.tape.empty() && !(wanted && op.once)) {
        for (int choice = 0; choice < static_cast<int>(op.choices.size()); ++choice) {
            own_ = std::min(own_, run_bytes(graph_, op, true, choice));
        }
    }
}

void Retention::add_edge(std::int32_t from, std::int32_t to, Edge edge) {
    cut_.add_edge(from, to, 0);
    edges_.push_back(edge);
}

// Capacities are whole numbers: bytes times one factor, and times by another, rounded down, so that the cut is never
// above the true one. The ratio of the factors is the price.
Retention::Point Retention::cheapest(Seconds price, Pace& pace) {
    const double bytes = std::max(static_cast<double>(most_held_), 1.0);
    double per_byte = std::floor(most_capacity / bytes);
    double per_second = per_byte / price;
    if (most_again_ * per_second > most_capacity) {
        per_second = most_capacity / most_again_;
        per_byte = std::floor(per_second * price);
    }
    capacities_.clear();
    for (const Edge& edge : edges_) {
        capacities_.push_back(edge.unlimited   ? MinCut::unlimited
                              : edge.bytes > 0 ? edge.bytes * static_cast<Bytes>(per_byte)
                                               : static_cast<Bytes>(edge.time * per_second));
    }
    per_second_ = per_second;
    pace.spend(8 * static_cast<std::int64_t>(edges_.size()));
    cut_.reset(capacities_);
    const Bytes least = cut_.solve(0, 1, MinCut::unlimited, pace);
    wanted_ = cut_.reached_from(0);
    Point found;
    found.price = per_byte / per_second;
    found.held = reads_ + bytes_of(graph_, held());
    for (const OpId op : again()) {
        found.again += fastest(graph_.op(op)).time;
    }
    found.least = static_cast<double>(least) / per_second + found.price * static_cast<double>(reads_);
    return found;
}

std::vector<Retention::Flow> Retention::flows() const {
    std::vector<Flow> flows;
    for (std::size_t e = 0; e < edges_.size(); ++e) {
        if (edges_[e].ends.tensor >= 0 && cut_.flow(e) > 0) {
            flows.push_back(edges_[e].ends);
            flows.back().seconds = static_cast<double>(cut_.flow(e)) / per_second_;
        }
    }
    return flows;
}

std::vector<OpId> Retention::again() const {
    std::vector<OpId> again;
    std::ranges::copy_if(ops_, std::back_inserter(again),
                         [&](OpId op) { return wanted_[at(node_of_op_[at(op)])] != 0; });
    return again;
}

std::vector<TensorId> Retention::held() const {
    std::vector<TensorId> held;
    for (const TensorId t : tensors_) {
        const OpId writer = graph_.writer(t);
        const std::int32_t node = writer < 0 ? -1 : node_of_op_[at(writer)];
        if (wanted_[at(node_of_tensor_[at(t)])] && (node < 0 || !wanted_[at(node)])) {
            held.push_back(t);
        }
    }
    return held;
}

} // namespace memsched
