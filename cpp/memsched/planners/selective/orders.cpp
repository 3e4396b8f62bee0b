#include "memsched/planners/selective/orders.h"

#include "memsched/model/variants.h"
#include "memsched/order/order.h"
#include "memsched/support/mix.h"

#include <algorithm>
#include <cstdlib>

namespace memsched {
namespace {

constexpr int most_sweeps = 3;
constexpr std::size_t random_ops = 300; // in all random orders, of which small graphs have many
constexpr int most_ticks = 1000;        // of the search for the least peak: some tenths of a second

class Tidying {
  public:
    Tidying(const Graph& graph, std::vector<OpId> order, const Progress& progress)
        : graph_(graph), pace_(progress), order_(std::move(order)), place_(inverse(order_)),
          readers_(readers_of(graph)) {}

    std::vector<OpId> order() const { return order_; }

    bool delay() {
        bool moved = false;
        const std::vector<OpId> ops(order_.rbegin(), order_.rend());
        for (const OpId op : ops) {
            OpId first = static_cast<OpId>(order_.size());
            for (const TensorId t : graph_.op(op).writes) {
                for (const OpId reader : readers_[at(t)]) {
                    first = std::min(first, place_[at(reader)]);
                }
            }
            Bytes kept = 0; // longer than before
            for (const TensorId t : graph_.op(op).reads) {
                kept += graph_.writer(t) >= 0 && last_read(t) < first - 1 ? graph_.tensor(t).bytes : 0;
            }
            if (at(first) < order_.size() && written_bytes(graph_, graph_.op(op)) > kept) {
                moved |= move(op, first - 1);
            }
        }
        return moved;
    }

    bool advance() {
        bool moved = false;
        const std::vector<OpId> ops = order_;
        for (const OpId op : ops) {
            OpId earliest = 0;
            Bytes freed = 0;
            std::vector<OpId> with; // what it waits for and can move right before it
            for (const TensorId t : graph_.op(op).reads) {
                const OpId writer = graph_.writer(t);
                if (writer >= 0 && is_light(writer)) {
                    with.push_back(writer);
                    earliest = std::max(earliest, ready(writer));
                } else {
                    earliest = std::max(earliest, writer < 0 ? 0 : place_[at(writer)] + 1);
                }
                if (writer < 0 || graph_.tensor(t).bytes == 0 || last_read(t) != place_[at(op)]) {
                    continue;
                }
                freed += graph_.tensor(t).bytes;
                for (const OpId reader : readers_[at(t)]) {
                    earliest = std::max(earliest, reader == op ? 0 : place_[at(reader)] + 1);
                }
            }
            if (freed > written_bytes(graph_, graph_.op(op))) {
                for (const OpId writer : with) {
                    if (place_[at(writer)] >= earliest) {
                        moved |= move(writer, earliest++);
                    }
                }
                moved |= move(op, earliest);
            }
        }
        return moved;
    }

  private:
    // Whether it holds nothing and frees nothing, such as one that counts the steps for an update.
    bool is_light(OpId op) const {
        const auto has_bytes = [&](TensorId t) { return graph_.writer(t) >= 0 && graph_.tensor(t).bytes > 0; };
        return written_bytes(graph_, graph_.op(op)) == 0 && std::ranges::none_of(graph_.op(op).reads, has_bytes);
    }

    // Where the last op that it waits for is done.
    OpId ready(OpId op) const {
        OpId found = 0;
        for (const TensorId t : graph_.op(op).reads) {
            found = std::max(found, graph_.writer(t) < 0 ? 0 : place_[at(graph_.writer(t))] + 1);
        }
        return found;
    }

    OpId last_read(TensorId tensor) {
        pace_.spend(static_cast<std::int64_t>(readers_[at(tensor)].size()));
        OpId last = -1;
        for (const OpId reader : readers_[at(tensor)]) {
            last = std::max(last, place_[at(reader)]);
        }
        return last;
    }

    bool move(OpId op, OpId to) {
        const auto from = place_[at(op)];
        pace_.spend(std::abs(to - from));
        const auto begin = order_.begin();
        if (from < to) {
            std::rotate(begin + from, begin + from + 1, begin + to + 1);
        } else {
            std::rotate(begin + to, begin + from, begin + from + 1);
        }
        for (OpId k = std::min(from, to); k <= std::max(from, to); ++k) {
            place_[at(order_[at(k)])] = k;
        }
        return from != to;
    }

    const Graph& graph_;
    Pace pace_;
    std::vector<OpId> order_, place_;
    IdLists readers_; // by tensor
};

std::vector<OpId> random_order(const Graph& graph, std::uint64_t seed) {
    std::vector<std::uint8_t> ran(graph.ops().size(), 0);
    const auto waits = [&](TensorId t) { return graph.writer(t) >= 0 && !ran[at(graph.writer(t))]; };
    std::vector<OpId> order, ready;
    while (order.size() < graph.ops().size()) {
        ready.clear();
        for (OpId op = 0; at(op) < graph.ops().size(); ++op) {
            if (!ran[at(op)] && std::ranges::none_of(graph.op(op).reads, waits)) {
                ready.push_back(op);
            }
        }
        seed = mix(seed);
        order.push_back(ready[seed % ready.size()]);
        ran[at(order.back())] = 1;
    }
    return order;
}

} // namespace

std::vector<OpId> tidied(const Graph& graph, std::vector<OpId> order, const Progress& progress) {
    Tidying tidying(graph, std::move(order), progress);
    try {
        for (int sweep = 0; sweep < most_sweeps; ++sweep) {
            const bool later = tidying.delay(), earlier = tidying.advance();
            if (!later && !earlier) {
                break;
            }
        }
    } catch (const Stopped&) { // each move leaves an order
    }
    return tidying.order();
}

Graph in_order(const Graph& graph, const std::vector<OpId>& order) {
    GraphData data{graph.name(), graph.batch(), graph.resident(), graph.tensors(), {}};
    for (const OpId op : order) {
        data.ops.push_back(graph.op(op));
    }
    return Graph(std::move(data));
}

namespace {

// advanced: also the listed order with nothing but advances.
std::vector<std::vector<OpId>> orders_of(const Graph& graph, bool advanced, const Progress& progress) {
    const std::vector<OpId> listed = all_ids(graph.ops().size());
    int ticks = 0;
    const Progress some{[&](double fraction) { return progress.tick(fraction) || ++ticks > most_ticks; }};
    std::vector<std::uint8_t> keep; // results, as in every plan
    for (TensorId t = 0; at(t) < graph.tensors().size(); ++t) {
        keep.push_back(graph.is_result(t));
    }
    const order::Problem problem = order::order_problem(graph, keep);
    std::vector<OpId> low = order::least_memory_order(problem, some).order;
    std::vector<std::vector<OpId>> all{tidied(graph, listed, progress), tidied(graph, low, progress), low};
    if (advanced) {
        Tidying early(graph, listed, progress);
        try {
            early.advance();
        } catch (const Stopped&) { // each move leaves an order
        }
        all.push_back(early.order());
    }
    for (std::size_t seed = 1; seed * graph.ops().size() <= random_ops; ++seed) {
        all.push_back(random_order(graph, seed));
    }
    std::erase_if(all, [&](const std::vector<OpId>& order) { return order.size() < listed.size(); }); // out of time
    std::ranges::sort(all);
    const auto beyond = std::unique(all.begin(), all.end());
    all.erase(std::remove(all.begin(), beyond, listed), all.end());
    return all;
}

} // namespace

std::vector<std::vector<OpId>> other_orders(const Graph& graph, const Progress& progress) {
    return graph.persistent() ? orders_of(with_control_edges(graph), true, progress)
                              : orders_of(graph, false, progress);
}

} // namespace memsched
