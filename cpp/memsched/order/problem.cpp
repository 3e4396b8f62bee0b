#include "memsched/order/problem.h"

#include "memsched/order/state.h"
#include "memsched/support/min_cut.h"

#include <algorithm>

namespace memsched::order {
namespace {

using Lists = std::vector<std::vector<std::int32_t>>;

void sort_each(Lists& lists) {
    for (auto& list : lists) {
        sort_unique(list);
    }
}

// Fills members, nets and after from lists that may repeat entries.
void connect(Problem& problem, Lists members, Lists before) {
    sort_each(members);
    sort_each(before);
    const auto turned = [&](const Lists& lists) {
        return IdLists(problem.ops(), [&](const auto& put) {
            for (std::size_t k = 0; k < lists.size(); ++k) {
                for (const OpId op : lists[k]) {
                    put(at(op), static_cast<std::int32_t>(k));
                }
            }
        });
    };
    problem.members = IdLists(members);
    problem.nets = turned(members);
    problem.before = IdLists(before);
    problem.after = turned(before);
}

Lists lists_of(const IdLists& ids) {
    Lists lists(ids.size());
    for (std::size_t k = 0; k < ids.size(); ++k) {
        lists[k].assign(ids[k].begin(), ids[k].end());
    }
    return lists;
}

void add_net(Problem& problem, Lists& members, std::vector<OpId> ops, Bytes bytes, bool from_start, bool to_end) {
    if (bytes == 0) {
        return;
    }
    if (ops.empty()) {
        problem.base += to_end ? bytes : 0; // the others are not held while an op runs
        return;
    }
    if (ops.size() == 1 && !from_start && !to_end) {
        problem.scratch[at(ops[0])] += bytes;
        return;
    }
    problem.bytes.push_back(bytes);
    problem.from_start.push_back(from_start);
    problem.to_end.push_back(to_end);
    members.push_back(std::move(ops));
}

} // namespace

Problem order_problem(const Graph& graph, const std::vector<std::uint8_t>& keep) {
    const auto& ops = graph.ops();
    Problem problem;
    problem.base = problem.start = graph.resident();
    Lists touched(graph.tensors().size()), before(ops.size()), members;
    for (std::size_t v = 0; v < ops.size(); ++v) {
        const bool skip = least_run(graph, ops[v], keep).skip;
        problem.scratch.push_back(workspace(ops[v], baseline(ops[v]), skip));
        for (const TensorId t : ops[v].writes) {
            if (!skip || !graph.taped(t)) {
                touched[at(t)].push_back(static_cast<OpId>(v));
            }
        }
        for (const TensorId t : ops[v].reads) {
            touched[at(t)].push_back(static_cast<OpId>(v));
            if (graph.writer(t) >= 0) {
                before[v].push_back(graph.writer(t));
            }
        }
    }
    sort_each(touched);
    for (std::size_t t = 0; t < touched.size(); ++t) {
        const Tensor& tensor = graph.tensors()[t];
        const bool given = graph.writer(static_cast<TensorId>(t)) < 0;
        const bool stays = tensor.role == Role::weight || keep[t] != 0;
        problem.start += given ? tensor.bytes : 0;
        add_net(problem, members, tensor.role == Role::weight ? std::vector<OpId>{} : std::move(touched[t]),
                tensor.bytes, given, stays);
    }
    connect(problem, std::move(members), std::move(before));
    return problem;
}

Problem reversed(const Problem& problem) {
    const auto last = static_cast<OpId>(problem.ops()) - 1;
    Problem turned = problem;
    std::swap(turned.from_start, turned.to_end);
    std::ranges::reverse(turned.scratch);
    Lists members = lists_of(problem.members), before = lists_of(problem.after);
    std::ranges::reverse(before);
    for (Lists* lists : {&members, &before}) {
        for (auto& list : *lists) {
            for (OpId& op : list) {
                op = last - op;
            }
        }
    }
    connect(turned, std::move(members), std::move(before));
    return turned;
}

std::vector<OpId> reversed(std::vector<OpId> order) {
    std::ranges::reverse(order);
    for (OpId& op : order) {
        op = static_cast<OpId>(order.size()) - 1 - op;
    }
    return order;
}

Problem part_of(const Problem& problem, const std::vector<OpId>& ops, const std::vector<std::uint8_t>& ran,
                const std::vector<std::pair<OpId, OpId>>& edges) {
    std::vector<OpId> number(problem.ops(), -1);
    Problem part;
    part.base = problem.base;
    Lists before(ops.size()), members;
    for (std::size_t k = 0; k < ops.size(); ++k) {
        number[at(ops[k])] = static_cast<OpId>(k);
        part.scratch.push_back(problem.scratch[at(ops[k])]);
        for (const OpId op : problem.before[at(ops[k])]) {
            if (number[at(op)] >= 0) {
                before[k].push_back(number[at(op)]);
            }
        }
    }
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        bool from_start = problem.from_start[e] != 0, to_end = problem.to_end[e] != 0;
        std::vector<OpId> inside;
        for (const OpId op : problem.members[e]) {
            if (number[at(op)] >= 0) {
                inside.push_back(number[at(op)]);
            } else {
                (ran[at(op)] ? from_start : to_end) = true;
            }
        }
        if (!inside.empty() || (from_start && to_end)) {
            add_net(part, members, std::move(inside), problem.bytes[e], from_start, to_end);
        }
    }
    for (const auto& [first, then] : edges) {
        before[at(then)].push_back(first);
    }
    connect(part, std::move(members), std::move(before));
    return part;
}

std::vector<Problem> split(const Problem& problem, const std::vector<OpId>& begins) {
    std::vector<Problem> parts(begins.size());
    std::vector<Lists> members(begins.size()), before(begins.size());
    std::vector<std::size_t> part_of_op(problem.ops());
    for (std::size_t v = 0, k = 0; v < problem.ops(); ++v) {
        k += k + 1 < begins.size() && static_cast<OpId>(v) == begins[k + 1];
        part_of_op[v] = k;
        parts[k].scratch.push_back(problem.scratch[v]);
        before[k].emplace_back();
        for (const OpId op : problem.before[v]) {
            if (op >= begins[k]) {
                before[k].back().push_back(op - begins[k]);
            }
        }
    }
    // By part: the bytes held throughout, minus those of the previous part.
    std::vector<Bytes> more(begins.size() + 1, 0);
    const auto hold = [&](std::size_t begin, std::size_t end, Bytes bytes) {
        more[begin] += bytes;
        more[end] -= bytes;
    };
    for (std::size_t e = 0; e < problem.bytes.size(); ++e) {
        const auto ops = problem.members[e];
        const std::size_t first = problem.from_start[e] ? 0 : part_of_op[at(ops.front())];
        const std::size_t last = problem.to_end[e] ? begins.size() - 1 : part_of_op[at(ops.back())];
        hold(first, last + 1, problem.bytes[e]);
        for (auto from = ops.begin(); from != ops.end();) {
            const std::size_t k = part_of_op[at(*from)];
            std::vector<OpId> inside;
            auto to = from;
            for (; to != ops.end() && part_of_op[at(*to)] == k; ++to) {
                inside.push_back(*to - begins[k]);
            }
            hold(k, k + 1, -problem.bytes[e]);
            add_net(parts[k], members[k], std::move(inside), problem.bytes[e],
                    problem.from_start[e] || from != ops.begin(), problem.to_end[e] || to != ops.end());
            from = to;
        }
    }
    Bytes base = problem.base;
    for (std::size_t k = 0; k < parts.size(); ++k) {
        base += more[k];
        parts[k].base = base;
        connect(parts[k], std::move(members[k]), std::move(before[k]));
    }
    return parts;
}

Bytes peak_of(const Problem& problem, const std::vector<OpId>& order) {
    State state(problem);
    Bytes peak = std::max(problem.start, state.memory());
    for (const OpId op : order) {
        peak = std::max(peak, state.needs(op));
        state.run(op);
    }
    return peak;
}

} // namespace memsched::order
