#include "memsched/order/deduce.h"

#include "memsched/order/greedy.h"

#include <algorithm>
#include <utility>

namespace memsched::order {
namespace {

// Two ops that may run in either order, the likelier order first.
struct Pair {
    OpId first = -1, then = -1;
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

    // The pair whose less restrictive case is the most restrictive.
    Pair choose(const Problem& problem) const {
        const Reach reach(problem, pace_);
        const std::vector<OpId> ops = needy_ops(problem, reach, 4 * critical_, pace_);
        std::vector<std::pair<Bytes, OpId>> needs;
        for (const OpId op : ops) {
            needs.emplace_back(-HeldCut(problem, reach, op, pace_).least(limit_ + 1), op);
        }
        std::ranges::sort(needs);
        needs.resize(std::min(needs.size(), critical_));
        Pair best;
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
                const Bytes ran = cut.if_ran(other, -1, limit_ + 1), not_yet = cut.if_not(other, -1, limit_ + 1);
                const std::pair<Bytes, Bytes> asks{std::min(ran, not_yet), std::max(ran, not_yet)};
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

Settled settle(const Problem& problem, Bytes limit, std::size_t critical, std::size_t cases, std::size_t room,
               Pace& pace) {
    return Cases(limit, critical, cases, room, pace).settle(problem);
}

} // namespace memsched::order
