#include "memsched/build/set_builder.h"

#include "memsched/support/errors.h"
#include "memsched/support/id_lists.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace memsched {

SetBuilder::SetBuilder(const Graph& graph) : graph_(graph), lifetimes_(graph), places_(graph, lifetimes_.turn) {
    const Lifetimes& l = lifetimes_;
    for (std::size_t t = 0; t < l.birth.size(); ++t) {
        if (l.movable(t)) {
            movable_.push_back(static_cast<TensorId>(t));
        }
    }
    const auto release = [&](TensorId t) { return std::tuple(l.last_forward[at(t)], l.birth[at(t)], t); };
    std::ranges::sort(movable_, {}, release);
    by_need_ = movable_;
    const auto need = [&](TensorId t) { return std::tuple(l.first_backward[at(t)], -l.last_forward[at(t)]); };
    std::ranges::stable_sort(by_need_, {}, need);

    // By op, and for each op by kind of event, in the order of PlanEvent::What; offloads of inputs come before the
    // first op.
    outline_.runs = all_ids(graph.ops().size());
    const IdLists slots(4 * (outline_.runs.size() + 1), [&](const auto& put) {
        const auto happens = [&](OpId op, PlanEvent::What what, std::int32_t id) {
            put(4 * at(op + 1) + static_cast<std::size_t>(what), id);
        };
        for (const OpId op : outline_.runs) {
            happens(op, PlanEvent::run, op);
        }
        for (const TensorId t : movable_) {
            happens(l.birth[at(t)], PlanEvent::offload, t);
            happens(l.away_from(at(t)) - 1, PlanEvent::leave, t);
        }
        for (std::size_t t = 0; t < l.last_use.size(); ++t) {
            if (l.last_use[t] >= 0) {
                happens(l.last_use[t], PlanEvent::free, static_cast<TensorId>(t));
            }
        }
    });
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        for (const std::int32_t id : slots[slot]) {
            outline_.events.push_back({static_cast<PlanEvent::What>(slot % 4), id});
        }
    }
}

// Computes the outline's usage and fetches. False if some run has no room.
bool SetBuilder::leave(std::span<const std::uint8_t> travels, Bytes capacity) {
    std::vector<Bytes>& usage = outline_.usage;
    usage.assign(lifetimes_.usage.size(), 0); // as differences first
    outline_.fetches.clear();
    OpId sent = 0; // the first op after all offloads
    for (const TensorId t : by_need_) {
        if (travels[at(t)]) {
            const OpId away = lifetimes_.away_from(at(t)), need = lifetimes_.first_backward[at(t)];
            sent = std::max(sent, lifetimes_.birth[at(t)] + 1);
            usage[at(away)] -= graph_.tensor(t).bytes;
            usage[at(need)] += graph_.tensor(t).bytes;
            outline_.fetches.push_back({t, need, away, need});
        }
    }
    if (!outline_.fetches.empty()) { // and no fetch before the first of them
        outline_.fetches[0].earliest = std::max(outline_.fetches[0].earliest, sent);
    }
    Bytes away = 0;
    for (std::size_t q = 0; q < usage.size(); ++q) {
        away += usage[q];
        usage[q] = lifetimes_.usage[q] + away;
        if (usage[q] > capacity) {
            return false;
        }
    }
    return true;
}

bool SetBuilder::build(std::span<const std::uint8_t> travels, Bytes capacity, const FetchRule& rule, StepList& list) {
    return leave(travels, capacity) && places_.list(outline_, capacity, rule, travels, list);
}

StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const FetchRule& rule) {
    StepList list;
    if (travels.size() != graph.tensors().size()) {
        throw std::invalid_argument("travels must hold one flag for each tensor");
    }
    if (!SetBuilder(graph).build(travels, budget - graph.resident(), rule, list)) {
        refuse_set(graph, budget);
    }
    return list;
}

void refuse_set(const Graph& graph, Bytes budget) {
    throw InfeasibleError("the offload set leaves some op without room in " + std::to_string(budget) + " bytes",
                          min_memory(graph));
}

} // namespace memsched
