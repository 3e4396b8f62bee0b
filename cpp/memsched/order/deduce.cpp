#include "memsched/order/deduce.h"

#include "memsched/order/greedy.h"

#include <algorithm>

namespace memsched::order {
namespace {

using Edges = std::vector<std::pair<OpId, OpId>>;

// A precedence that holds in every order whose peak is less than `price`.
struct Precedence {
    OpId first, then;
    Bytes price;
};

// Topological order of ops and edges; shorter than the list of ops if there is a cycle.
std::vector<OpId> sorted_with(const Problem& problem, const Edges& edges) {
    std::vector<std::int32_t> waits(problem.ops(), 0);
    std::vector<std::vector<OpId>> after(problem.ops());
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        waits[v] = static_cast<std::int32_t>(problem.before[v].size());
        after[v].assign(problem.after[v].begin(), problem.after[v].end());
    }
    for (const auto& [first, then] : edges) {
        after[at(first)].push_back(then);
        ++waits[at(then)];
    }
    std::vector<OpId> ops;
    for (std::size_t v = 0; v < problem.ops(); ++v) {
        if (waits[v] == 0) {
            ops.push_back(static_cast<OpId>(v));
        }
    }
    for (std::size_t k = 0; k < ops.size(); ++k) {
        for (const OpId next : after[at(ops[k])]) {
            if (--waits[at(next)] == 0) {
                ops.push_back(next);
            }
        }
    }
    return ops;
}

// The ops with the largest needs by the simple bound, largest first.
std::vector<OpId> needy_ops(const Problem& problem, const Reach& reach, std::size_t most, Pace& pace) {
    const std::vector<Bytes> held = held_at_least(problem, reach, pace);
    std::vector<OpId> ops = all_ids(problem.ops());
    most = std::min(most, ops.size());
    std::partial_sort(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(most), ops.end(),
                      [&](OpId a, OpId b) { return std::pair(-held[at(a)], a) < std::pair(-held[at(b)], b); });
    ops.resize(most);
    return ops;
}

class Deduction {
  public:
    Deduction(const Problem& problem, Bytes lower, Bytes upper, std::size_t critical, std::size_t room, Pace& pace)
        : problem_(problem), upper_(upper), critical_(critical), room_(room), pace_(pace),
          now_{problem, {}, upper, lower} {}

    Deduced run() {
        for (bool more = true; more;) {
            rebuild();
            if (now_.lower >= upper_ || pace_.told_to_stop()) {
                break;
            }
            const std::size_t before = found_.size();
            const Bytes lower = now_.lower;
            try {
                look();
            } catch (const Stopped&) {
                break; // the deductions so far are consistent
            }
            more = found_.size() > before || now_.lower > lower;
        }
        return std::move(now_);
    }

  private:
    // Rebuilds the problem with the precedences of orders whose peak is `lower`.
    void rebuild() {
        for (;;) {
            std::erase_if(found_, [&](const Precedence& one) { return one.price <= now_.lower; });
            pace_.spend(static_cast<std::int64_t>(16 * (problem_.ops() + problem_.bytes.size() + found_.size())));
            now_.below = upper_;
            Edges edges;
            for (const Precedence& one : found_) {
                now_.below = std::min(now_.below, one.price);
                edges.emplace_back(one.first, one.then);
            }
            Deduced next = with_precedences(problem_, edges);
            now_.problem = std::move(next.problem);
            now_.ops = std::move(next.ops);
            if (now_.ops.size() == problem_.ops()) {
                return;
            }
            now_.lower = now_.below; // a cycle: no order is below all prices
        }
    }

    // Cuts more ops than it queries: with new precedences, an op may need more than before.
    void look() {
        const Reach reach(now_.problem, pace_);
        std::vector<HeldCut> cuts;
        std::vector<std::pair<Bytes, std::size_t>> needs;
        const std::vector<OpId> ops = needy_ops(now_.problem, reach, 4 * critical_, pace_);
        std::size_t held = 0;
        for (const OpId op : ops) {
            cuts.emplace_back(now_.problem, reach, op, pace_);
            const Bytes need = cuts.back().least(now_.below);
            now_.lower = std::max(now_.lower, std::min(need, now_.below));
            if (now_.lower >= now_.below || pace_.told_to_stop()) {
                return;
            }
            needs.emplace_back(-need, needs.size());
            if ((held += cuts.back().bytes()) >= room_) {
                break;
            }
        }
        std::ranges::sort(needs);
        for (std::size_t k = 0; k < std::min(critical_, needs.size()) && !pace_.told_to_stop(); ++k) {
            look_at(reach, cuts[needs[k].second], ops[needs[k].second]);
        }
    }

    // Deductions from one op about all others. A deduction about one also holds for ops after it.
    void look_at(const Reach& reach, HeldCut& cut, OpId op) {
        const Problem& problem = now_.problem;
        std::vector<std::uint8_t> told(problem.ops(), 0);
        const auto look_beside = [&](OpId other, std::span<const OpId> nearer, bool ran) {
            if (!reach.in_any_order(op, other)) {
                return;
            }
            told[at(other)] = std::ranges::any_of(nearer, [&](OpId one) { return told[at(one)] != 0; }) ||
                              note(ran ? std::pair(op, other) : std::pair(other, op),
                                   cut.least_if(other, ran, now_.lower, now_.below));
        };
        for (std::size_t v = 0; v < problem.ops(); ++v) {
            look_beside(static_cast<OpId>(v), problem.before[v], true);
        }
        std::ranges::fill(told, 0);
        for (std::size_t v = problem.ops(); v-- > 0;) {
            look_beside(static_cast<OpId>(v), problem.after[v], false);
        }
    }

    // Whether the need in the other direction rules it out. Earlier deductions were used, so they cap the price.
    bool note(std::pair<OpId, OpId> edge, Bytes price) {
        if (price > now_.lower) {
            found_.push_back({now_.ops[at(edge.first)], now_.ops[at(edge.second)], std::min(price, now_.below)});
        }
        return price > now_.lower;
    }

    const Problem& problem_;
    Bytes upper_;
    std::size_t critical_, room_;
    Pace& pace_;
    Deduced now_;
    std::vector<Precedence> found_;
};

// Op k of the part was ops[k].
std::vector<OpId> composed(const std::vector<OpId>& ops, std::vector<OpId> part) {
    for (OpId& op : part) {
        op = ops[at(op)];
    }
    return part;
}

class Cases {
  public:
    Cases(Bytes limit, std::size_t critical, std::size_t cases, std::size_t room, Pace& pace)
        : limit_(limit), critical_(critical), room_(room), left_(cases), pace_(pace) {}

    Settled settle(const Problem& problem) {
        Settled settled;
        if (left_ == 0 || pace_.told_to_stop()) {
            return settled;
        }
        --left_;
        const Deduced told = deduce(problem, limit_, limit_ + 1, critical_, room_, pace_);
        settled.impossible = told.lower > limit_;
        if (settled.impossible) {
            return settled;
        }
        settled.order = composed(told.ops, try_orders(told.problem));
        if (!settled.order.empty()) {
            return settled;
        }
        auto [first, then] = choose(told.problem);
        if (first < 0) {
            return settled;
        }
        settled.impossible = true;
        for (int side = 0; side < 2; ++side) {
            const Deduced one = with_precedences(told.problem, {{first, then}});
            const Settled found = settle(one.problem);
            if (!found.order.empty()) {
                return {composed(told.ops, composed(one.ops, found.order)), false};
            }
            settled.impossible = settled.impossible && found.impossible;
            std::swap(first, then);
        }
        return settled;
    }

  private:
    std::vector<OpId> try_orders(const Problem& problem) const {
        const Problem turned = reversed(problem);
        for (const Greedy rule : simple_rules) {
            std::vector<OpId> order = greedy_order(problem, limit_, rule, pace_);
            if (peak_of(problem, order) <= limit_) {
                return order;
            }
            order = greedy_order(turned, limit_, rule, pace_);
            if (peak_of(turned, order) <= limit_) {
                return reversed(std::move(order));
            }
        }
        return {};
    }

    // Of two ops that may run in either order, those whose less restrictive case is the most restrictive, the likelier
    // order first; -1: there are none.
    std::pair<OpId, OpId> choose(const Problem& problem) const {
        const Reach reach(problem, pace_);
        const std::vector<OpId> ops = needy_ops(problem, reach, 4 * critical_, pace_);
        std::vector<std::pair<Bytes, OpId>> needs;
        for (const OpId op : ops) {
            needs.emplace_back(-HeldCut(problem, reach, op, pace_).least(limit_ + 1), op);
        }
        std::ranges::sort(needs);
        needs.resize(std::min(needs.size(), critical_));
        std::pair<OpId, OpId> best{-1, -1};
        std::pair<Bytes, Bytes> most{-1, -1};
        for (const auto& [need, op] : needs) {
            if (pace_.told_to_stop()) {
                break;
            }
            HeldCut cut(problem, reach, op, pace_);
            cut.least(limit_ + 1);
            for (const OpId other : ops) {
                if (!reach.in_any_order(op, other)) {
                    continue;
                }
                const std::pair<Bytes, Bytes> asks = std::minmax(
                    {cut.least_if(other, true, -1, limit_ + 1), cut.least_if(other, false, -1, limit_ + 1)});
                if (asks > most) {
                    most = asks;
                    best = {op, other};
                }
            }
        }
        return best;
    }

    Bytes limit_;
    std::size_t critical_, room_;
    std::size_t left_;
    Pace& pace_;
};

} // namespace

Deduced with_precedences(const Problem& problem, const Edges& edges) {
    Deduced found;
    found.ops = sorted_with(problem, edges);
    if (found.ops.size() < problem.ops()) {
        return found;
    }
    const std::vector<OpId> number = inverse(found.ops);
    Edges renamed;
    for (const auto& [first, then] : edges) {
        renamed.emplace_back(number[at(first)], number[at(then)]);
    }
    found.problem = part_of(problem, found.ops, std::vector<std::uint8_t>(problem.ops(), 0), renamed);
    return found;
}

Deduced deduce(const Problem& problem, Bytes lower, Bytes upper, std::size_t critical, std::size_t room, Pace& pace) {
    return Deduction(problem, lower, upper, critical, room, pace).run();
}

Settled settle(const Problem& problem, Bytes limit, std::size_t critical, std::size_t cases, std::size_t room,
               Pace& pace) {
    return Cases(limit, critical, cases, room, pace).settle(problem);
}

} // namespace memsched::order
