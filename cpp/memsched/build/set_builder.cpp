#include "memsched/build/set_builder.h"

#include "memsched/support/errors.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>

namespace memsched {

SetBuilder::SetBuilder(const Graph& graph, Bytes capacity)
    : graph_(graph), capacity_(capacity), lifetimes_(graph), written_(graph.ops().size() + 1),
      forward_end_(graph.ops().size()), last_read_(graph.ops().size()) {
    for (const Op& op : graph.ops()) {
        if (op.choices.size() > 1) {
            throw std::invalid_argument("op '" + op.name + "' has several algorithms; offload sets take ops with one");
        }
    }
    const Lifetimes& l = lifetimes_;
    const auto at = [](const std::vector<OpId>& column, TensorId t) { return column[static_cast<std::size_t>(t)]; };
    for (std::size_t t = 0; t < l.birth.size(); ++t) {
        const auto id = static_cast<TensorId>(t);
        if (l.movable(t)) {
            movable_.push_back(id);
        }
        if (l.last_use[t] >= 0) {
            last_read_[static_cast<std::size_t>(l.last_use[t])].push_back(id);
        }
    }
    std::sort(movable_.begin(), movable_.end(), [&](TensorId a, TensorId b) {
        return std::tuple(at(l.last_forward, a), at(l.birth, a), a) <
               std::tuple(at(l.last_forward, b), at(l.birth, b), b);
    });
    by_need_ = movable_;
    std::stable_sort(by_need_.begin(), by_need_.end(), [&](TensorId a, TensorId b) {
        return std::tuple(at(l.first_backward, a), -at(l.last_forward, a)) <
               std::tuple(at(l.first_backward, b), -at(l.last_forward, b));
    });
    for (const TensorId t : movable_) {
        written_[static_cast<std::size_t>(at(l.birth, t) + 1)].push_back(t);
        forward_end_[static_cast<std::size_t>(std::max(at(l.last_forward, t), 0))].push_back(t);
    }
}

bool SetBuilder::place(const std::vector<std::uint8_t>& travels, const PrefetchRule& rule) {
    const auto n = static_cast<OpId>(graph_.ops().size());
    usage_.assign(graph_.ops().size() + 1, 0); // first as differences
    fetches_.clear();
    OpId last_offload = -1;
    for (const TensorId t : by_need_) {
        const auto id = static_cast<std::size_t>(t);
        if (!travels[id]) {
            continue;
        }
        const OpId away = lifetimes_.away_from(id);
        const OpId need = lifetimes_.first_backward[id];
        last_offload = std::max(last_offload, lifetimes_.birth[id]);
        usage_[static_cast<std::size_t>(away)] -= graph_.tensor(t).bytes;
        usage_[static_cast<std::size_t>(need)] += graph_.tensor(t).bytes;
        fetches_.push_back({t, need, need});
    }
    Bytes away = 0;
    for (OpId q = 0; q < n; ++q) {
        const auto id = static_cast<std::size_t>(q);
        away += usage_[id];
        usage_[id] = lifetimes_.usage[id] + away;
        if (usage_[id] > capacity_) {
            return false;
        }
    }
    const OpId earliest = last_offload + 1; // every prefetch stands after every offload and after the one before it
    if (rule.kind == PrefetchRule::Kind::window) {
        return fetch_ahead(earliest, rule.ahead);
    }
    fetch_eagerly(earliest);
    return true;
}

void SetBuilder::fetch_eagerly(OpId earliest) {
    // Fetches are in the order of their needs, and so are their places. So at op q, behind the last place, those before
    // fetch i are held that are needed after q: there is room for i where usage[q] - (what is needed by q) + (what is
    // fetched up to i) fits. The last op without room is a crest: an op whose level no later op reaches.
    crests_.clear();
    std::size_t first = 0;
    OpId next = 0;
    Bytes fetched = 0;
    for (Fetch& fetch : fetches_) {
        for (; next < fetch.need; ++next) {
            const Bytes level = usage_[static_cast<std::size_t>(next)] - fetched;
            while (crests_.size() > first && crests_.back().level <= level) {
                crests_.pop_back();
            }
            crests_.push_back({next, level});
        }
        fetched += graph_.tensor(fetch.tensor).bytes;
        earliest = std::max(earliest, lifetimes_.away_from(static_cast<std::size_t>(fetch.tensor)));
        for (; first < crests_.size() && (crests_[first].op < earliest || crests_[first].level + fetched > capacity_);
             ++first) {
            earliest = std::max(earliest, crests_[first].op + 1);
        }
        fetch.at = earliest = std::min(earliest, fetch.need);
    }
}

bool SetBuilder::fetch_ahead(OpId earliest, int ahead) {
    for (Fetch& fetch : fetches_) {
        earliest = std::max(earliest, lifetimes_.away_from(static_cast<std::size_t>(fetch.tensor)));
        fetch.at = earliest = std::min(fetch.need, std::max(earliest, fetch.need - ahead));
    }
    Bytes early = 0; // fetched before they are needed
    auto begun = fetches_.begin(), needed = fetches_.begin();
    for (std::size_t q = 0; q < graph_.ops().size(); ++q) {
        const auto op = static_cast<OpId>(q);
        for (; begun != fetches_.end() && begun->at <= op; ++begun) {
            early += graph_.tensor(begun->tensor).bytes;
        }
        for (; needed != fetches_.end() && needed->need <= op; ++needed) {
            early -= graph_.tensor(needed->tensor).bytes;
        }
        if (usage_[q] + early > capacity_) {
            return false;
        }
    }
    return true;
}

void SetBuilder::emit(const std::vector<std::uint8_t>& travels, StepList& list) const {
    list.steps.clear();
    list.after.clear();
    const auto offload_written = [&](std::size_t slot) {
        for (const TensorId t : written_[slot]) {
            if (travels[static_cast<std::size_t>(t)]) {
                list.offload(t);
            }
        }
    };
    offload_written(0);
    auto fetch = fetches_.begin();
    for (std::size_t q = 0; q < graph_.ops().size(); ++q) {
        for (; fetch != fetches_.end() && fetch->at == static_cast<OpId>(q); ++fetch) {
            list.prefetch(fetch->tensor);
        }
        list.run(static_cast<OpId>(q));
        offload_written(q + 1);
        for (const TensorId t : forward_end_[q]) {
            if (travels[static_cast<std::size_t>(t)]) {
                list.free(t);
            }
        }
        for (const TensorId t : last_read_[q]) {
            list.free(t);
        }
    }
}

bool SetBuilder::build(const std::vector<std::uint8_t>& travels, const PrefetchRule& rule, StepList& list) {
    if (!place(travels, rule)) {
        return false;
    }
    emit(travels, list);
    return true;
}

StepList offload_set_steps(const Graph& graph, Bytes budget, const std::vector<std::uint8_t>& travels,
                           const PrefetchRule& rule) {
    StepList list;
    if (travels.size() != graph.tensors().size()) {
        throw std::invalid_argument("travels must hold one flag for each tensor");
    }
    if (!SetBuilder(graph, budget - graph.resident()).build(travels, rule, list)) {
        refuse_set(graph, budget);
    }
    return list;
}

void refuse_set(const Graph& graph, Bytes budget) {
    throw InfeasibleError("the offload set leaves some op without room in " + std::to_string(budget) + " bytes",
                          min_memory(graph));
}

} // namespace memsched
