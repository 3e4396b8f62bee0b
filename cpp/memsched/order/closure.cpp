#include "memsched/order/closure.h"

#include "memsched/support/min_cut.h"

#include <algorithm>
#include <limits>

namespace memsched::order {

namespace {

// The same as `safe_part`, by a minimum cut between ops inside and outside the part.
std::vector<OpId> safe_part_by_cut(const State& state, const std::vector<OpId>& ran, Pace& pace) {
    constexpr std::int32_t source = 0, sink = 1;
    const Problem& problem = state.problem();
    std::vector<NetId> nets;
    for (const OpId op : ran) {
        nets.insert(nets.end(), problem.nets[at(op)].begin(), problem.nets[at(op)].end());
    }
    sort_unique(nets);
    const auto node = [&](OpId op) { // of an op in `ran`; -1 for other ops
        const auto found = std::ranges::find(ran, op);
        return found == ran.end() ? -1 : 2 + static_cast<std::int32_t>(found - ran.begin());
    };
    const auto first_net = 2 + static_cast<std::int32_t>(ran.size());
    MinCut cut(at(first_net) + 2 * nets.size());
    for (std::size_t k = 0; k < nets.size(); ++k) {
        const std::int32_t enter = first_net + 2 * static_cast<std::int32_t>(k), leave = enter + 1;
        cut.add_edge(enter, leave, problem.bytes[at(nets[k])]);
        std::int32_t inside = 0;
        pace.spend(static_cast<std::int64_t>(8 * problem.members[at(nets[k])].size()));
        for (const OpId op : problem.members[at(nets[k])]) {
            if (const std::int32_t n = node(op); n >= 0) {
                cut.add_edge(n, enter, MinCut::unlimited);
                cut.add_edge(leave, n, MinCut::unlimited);
                ++inside;
            }
        }
        if (state.met(nets[k]) > inside) {
            cut.add_edge(source, enter, MinCut::unlimited);
        }
        if (state.left(nets[k]) > 0) {
            cut.add_edge(leave, sink, MinCut::unlimited);
        }
    }
    for (std::size_t k = 0; k < ran.size(); ++k) {
        for (const OpId op : problem.before[at(ran[k])]) {
            if (const std::int32_t n = node(op); n >= 0) {
                cut.add_edge(2 + static_cast<std::int32_t>(k), n, MinCut::unlimited);
            }
        }
    }
    cut.solve(source, sink, MinCut::unlimited, pace);
    const std::vector<std::uint8_t> late = cut.reaches(sink);
    std::vector<OpId> part;
    for (std::size_t k = 0; k < ran.size(); ++k) {
        if (!late[2 + k]) {
            part.push_back(ran[k]);
        }
    }
    return part;
}

} // namespace

Closure::Closure(State& state, Pace& pace, Effort effort)
    : state_(state), pace_(pace), effort_(effort), offered_(state.problem().ops(), 0),
      is_awake_(state.problem().ops(), 0), fits_below_(state.problem().ops(), never), sleepers_(state.problem().ops()) {
    forget();
}

void Closure::forget() {
    std::ranges::for_each(sleepers_, &std::vector<OpId>::clear);
    hungry_.clear();
    for (const OpId op : state_.ready()) {
        wake(op);
    }
}

void Closure::wake(OpId op) {
    fits_below_[at(op)] = never;
    if (!is_awake_[at(op)]) {
        is_awake_[at(op)] = 1;
        awake_.push(op);
    }
}

void Closure::wake_those_near(OpId op) {
    for (const OpId sleeper : sleepers_[at(op)]) {
        wake(sleeper);
    }
    sleepers_[at(op)].clear();
    if (state_.is_ready(op)) {
        wake(op);
    }
}

bool Closure::wake_those_that_fit() {
    pace_.spend(static_cast<std::int64_t>(hungry_.size()));
    std::erase_if(hungry_, [&](OpId op) {
        const bool fits = fits_below_[at(op)] >= state_.memory();
        if (fits) {
            wake(op);
        }
        return fits || fits_below_[at(op)] == never;
    });
    return !awake_.empty();
}

template <class Each> void Closure::near_last(const Each& each) const {
    const Problem& problem = state_.problem();
    const OpId last = state_.order().back();
    for (const OpId op : problem.after[at(last)]) {
        each(op);
    }
    for (const NetId e : problem.nets[at(last)]) {
        if (state_.just_begun(e) || state_.one_left(e)) {
            pace_.spend(static_cast<std::int64_t>(4 * problem.members[at(e)].size()));
            for (const OpId op : problem.members[at(e)]) {
                each(op);
            }
        }
    }
}

void Closure::run(OpId op) {
    state_.run(op);
    wake_those_near(op);
    near_last([&](OpId other) { wake_those_near(other); });
}

void Closure::offer(OpId op) {
    if (state_.is_ready(op) && offered_[at(op)] != attempt_) {
        offered_[at(op)] = attempt_;
        nearby_.push_back(op);
    }
}

// The nearby op that fits and takes least; -1 if there is none.
OpId Closure::next(Bytes limit) {
    OpId best = -1;
    Bytes least = 0;
    pace_.spend(static_cast<std::int64_t>(8 * nearby_.size()) + 8);
    for (const OpId op : nearby_) {
        if (!state_.is_ready(op)) {
            continue; // has run
        }
        const Bytes change = state_.change(op);
        if (best >= 0 && (change > least || (change == least && op > best))) {
            continue;
        }
        const Bytes excess = state_.needs(op) - limit;
        if (excess > 0) {
            excess_ = std::min(excess_, excess);
            continue;
        }
        best = op;
        least = change;
    }
    return best;
}

// Among the ops that ran since `from`: the largest set that could run alone and ends with the fewest bytes.
std::vector<OpId> Closure::safe_part(std::size_t from) const {
    const Problem& problem = state_.problem();
    const auto& order = state_.order();
    std::vector<OpId> ran(order.begin() + static_cast<std::ptrdiff_t>(from), order.end());
    bool chain = true; // then every part is a prefix, and prefixes held more
    for (std::size_t k = 1; k < ran.size() && chain; ++k) {
        const auto& before = problem.before[at(ran[k])];
        chain = std::ranges::find(before, ran[k - 1]) != before.end();
    }
    return chain ? ran : safe_part_by_cut(state_, ran, pace_);
}

// Runs an op and its followers as far as this loses nothing; otherwise restores the state.
bool Closure::run_sequence(OpId first, Bytes limit) {
    const Bytes before = state_.memory();
    const std::size_t from = state_.order().size();
    ++attempt_;
    nearby_.clear();
    excess_ = std::numeric_limits<Bytes>::max();
    offer(first);
    bool found = false;
    int growths = 0;
    for (OpId op = next(limit); op >= 0 && state_.order().size() - from < effort_.longest; op = next(limit)) {
        growths += state_.change(op) > 0;
        if (growths > effort_.growths) {
            break;
        }
        state_.run(op);
        found = state_.memory() <= before;
        if (found) {
            break;
        }
        near_last([&](OpId other) { offer(other); });
    }
    const std::vector<OpId> ran = found ? safe_part(from) : std::vector<OpId>{};
    while (state_.order().size() > from) {
        state_.undo();
    }
    for (const OpId op : ran) {
        run(op);
    }
    if (!found) {
        sleep(first);
    }
    return found;
}

// After a failed attempt: another would fail too until fewer bytes are held or something near changes.
void Closure::sleep(OpId first) {
    if (state_.memory() >= excess_) {
        fits_below_[at(first)] = state_.memory() - excess_;
        hungry_.push_back(first);
    }
    for (const OpId op : nearby_) {
        sleepers_[at(op)].push_back(first);
    }
}

void Closure::close(Bytes limit) {
    if (limit != limit_) {
        forget();
        limit_ = limit;
    }
    for (;;) {
        if (state_.ready().size() == 1 && state_.needs(state_.ready()[0]) <= limit) {
            run(state_.ready()[0]); // no alternative
        } else if (!awake_.empty() || wake_those_that_fit()) {
            const OpId op = awake_.top();
            awake_.pop();
            is_awake_[at(op)] = 0;
            if (state_.is_ready(op)) {
                run_sequence(op, limit);
            }
        } else {
            return;
        }
    }
}

} // namespace memsched::order
