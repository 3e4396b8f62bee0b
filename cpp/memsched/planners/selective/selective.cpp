#include "memsched/planners/selective/selective.h"

#include "memsched/model/fixed_choices.h"
#include "memsched/model/lifetimes.h"
#include "memsched/planners/selective/annealing.h"
#include "memsched/planners/selective/changes.h"
#include "memsched/planners/selective/orders.h"
#include "memsched/planners/selective/polish.h"
#include "memsched/planners/selective/starts.h"
#include "memsched/planners/selective/whole_step.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/late_acceptance.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

namespace memsched {
namespace {

constexpr std::size_t most_finalists = 2;    // searches that go on after a first look,
constexpr std::int64_t finalist_moves = 200; // and their moves, at most, before the best alone goes on
constexpr double far = 0.01;                 // from the bound: the list of runs is annealed, too,
constexpr int slacks = 10;
constexpr int border_shares = 16;      // of the persistent tensors that are on the host at the border
constexpr std::size_t host_shares = 8; // of the ops that may run on the host
constexpr std::size_t mixed_ops = 300; // in all searches with algorithms at random, of which small graphs have many

class SelectiveSearch {
  public:
    // order: of the ops of the original graph; empty: as listed.
    SelectiveSearch(FixedChoices fixed, std::vector<OpId> order, const Device& device, const Progress& progress)
        : fixed_(std::move(fixed)), closed_(closed(fixed_.graph)), order_(std::move(order)),
          linked_(device.d2h > 0 && device.h2d > 0), device_(device),
          capacity_(device.memory - fixed_.graph.resident()),
          builder_(closed_ ? *closed_ : fixed_.graph, device, progress),
          simulator_(fixed_.graph, device, device.memory), changes_(fixed_.graph, builder_.gaps(), linked_),
          progress_(progress),
          annealing_(closed_ ? *closed_ : fixed_.graph, fixed_.graph.ops().size(), simulator_, linked_),
          polishing_(simulator_) {
        for (const Op& op : fixed_.graph.ops()) {
            total_ += op.choices[0].time;
            least_ += op.host_time ? 0 : op.choices[0].time;
        }
        hosted_ = too_large(fixed_.graph, capacity_);
    }

    Seconds ask(const Classes& classes) { return ask(Decisions{classes, {}, eviction_, 0, hosted_}); }
    Seconds ask(const Decisions& what) {
        ++evaluations_;
        if (!builder_.build(what.classes, what.weights, what.eviction, what.hosted, room(what), list_)) {
            return Simulator::illegal;
        }
        if (closed_) {
            const auto ops = static_cast<OpId>(fixed_.graph.ops().size());
            std::erase_if(list_.steps, [&](const Step& step) { return step.verb == Verb::run && step.id == ops; });
        }
        const Seconds found = simulator_.makespan(list_, interrupts_);
        if (found < best_) {
            best_ = found;
            steps_ = list_;
            chosen_ = what;
        }
        return found;
    }

    // Whether it was told to stop and has a plan, or nothing can be better.
    bool stopped() { return (progress_.tick(0) && has_plan()) || makespan() <= least_ * (1 + 1e-12); }
    bool has_plan() const { return best_ < Simulator::illegal; }
    double gap() const { return makespan() / least_ - 1; }

    // Without cuts.
    void begin() {
        ask(all(MapClass::keep));
        if (linked_ && !stopped()) {
            ask(all(MapClass::swap));
        }
        from_prices();
        if (linked_ && fixed_.graph.persistent()) {
            from_border();
            from_slack();
            from_hosts();
        }
    }

    void from_cuts() {
        if (stopped()) {
            return;
        }
        const Lifetimes lifetimes(fixed_.graph);
        const auto fullest = std::ranges::max_element(lifetimes.usage) - lifetimes.usage.begin();
        const CutBound bound = cut_bound(fixed_.graph, device_, device_.memory, progress_);
        least_ = std::max(least_, bound.seconds);
        std::vector<OpId> done;
        for (const OpId op : {bound.op, static_cast<OpId>(fullest), lifetimes.turn}) {
            const bool exists = op >= 0 && at(op) < fixed_.graph.ops().size();
            if (exists && std::ranges::find(done, op) == done.end() && !stopped()) {
                from_cuts(op);
                done.push_back(op);
            }
        }
    }

    void begin_walk(std::uint64_t seed) {
        random_.seed(seed);
        chosen_.weights.resize(fixed_.graph.tensors().size(), 1.0f);
        current_ = chosen_;
        late_.restart(best_);
        waited_ = 0;
    }

    // Goes on.
    void walk(std::int64_t moves) {
        if (!changes_.any() || !has_plan()) {
            return;
        }
        Decisions next;
        for (std::int64_t move = 0; move < moves && !stopped(); ++move) {
            next = current_;
            changes_.change(next, random_);
            const Seconds before = best_;
            if (late_.accept(ask(next))) {
                std::swap(current_, next);
            }
            waited_ = best_ < before * (1 - 1e-12) ? 0 : waited_ + 1;
            if (waited_ > 50 + 2 * static_cast<std::int64_t>(changes_.count())) {
                current_ = chosen_;
                late_.restart(best_);
                waited_ = 0;
            }
        }
    }

    void anneal(std::int64_t moves, std::int64_t most, std::uint64_t seed) {
        annealing_.run(steps_, best_, room(chosen_), moves, most, seed, [&] { return stopped(); });
    }

    // Of whole steps.
    void polish(std::int64_t moves) {
        if (fixed_.graph.persistent() && linked_ && has_plan()) {
            const bool annealed = annealing_.makespan() < best_;
            polishing_.run(annealed ? annealing_.steps() : steps_, std::min(best_, annealing_.makespan()), moves,
                           random_, [&] { return stopped(); });
        }
    }

    Seconds makespan() const { return std::min({best_, annealing_.makespan(), polishing_.makespan()}); }
    StepList steps() const { // of the original graph
        StepList list = fixed_.on_original(best_steps());
        for (Step& step : list.steps) {
            step.id = names_op(step.verb) && !order_.empty() ? order_[at(step.id)] : step.id;
        }
        return list;
    }
    std::int64_t evaluations() const { return evaluations_ + annealing_.evaluations() + polishing_.evaluations(); }

  private:
    Bytes room(const Decisions& what) const {
        return capacity_ - static_cast<Bytes>(what.slack * static_cast<double>(capacity_));
    }
    const StepList& best_steps() const {
        const StepList& found = annealing_.makespan() < best_ ? annealing_.steps() : steps_;
        return polishing_.makespan() <= makespan() ? polishing_.steps() : found;
    }
    Classes all(MapClass kind) const { return Classes(builder_.gaps().size(), kind); }

    // The price of travel: a coarse grid, and then finer steps.
    void from_prices() {
        const double link = linked_ ? 1 / device_.d2h + 1 / device_.h2d : 0;
        Seconds least = Simulator::illegal;
        const auto try_eviction = [&](const Eviction& eviction) {
            if (!stopped()) {
                const Seconds found = ask({all(MapClass::keep), {}, eviction, 0, hosted_});
                if (found < least) {
                    least = found;
                    eviction_ = eviction;
                }
            }
        };
        for (int roots = 0; roots <= 2; ++roots) {
            for (int k = 0; k < (linked_ ? 12 : 1); ++k) {
                try_eviction({roots, link * 1e-5 * std::pow(3.0, k), true});
            }
        }
        const Eviction best = eviction_;
        for (int roots = 0; roots <= 2; ++roots) {
            try_eviction({roots, best.travel, false});
        }
        for (double factor = 2; linked_ && factor > 1.05; factor = std::sqrt(factor)) {
            for (const double change : {1 / factor, factor}) {
                try_eviction({eviction_.roots, eviction_.travel * change, eviction_.forward_only});
            }
        }
    }

    // Persistent tensors on the host at the border: those that are idle for the longest time, up to a share of the
    // bytes. The rest goes by the best price so far, or travels last, as the link has enough to do.
    void from_border() {
        const std::vector<std::size_t> gaps = longest_across_border(fixed_.graph, builder_.gaps());
        const double all_bytes = static_cast<double>(persistent_bytes(fixed_.graph)) / border_shares;
        for (const Eviction& way : {eviction_, Eviction{eviction_.roots, total_, false}}) {
            Decisions what{all(MapClass::keep), {}, way, 0, hosted_};
            double away = 0;
            int shares = 0;
            for (const std::size_t g : gaps) {
                what.classes[g] = MapClass::swap;
                away += static_cast<double>(fixed_.graph.tensor(builder_.gaps()[g].tensor).bytes);
                if (away >= all_bytes * (shares + 1) && !stopped()) {
                    ++shares;
                    ask(what);
                }
            }
        }
    }

    // Ops on the host, up to a share of them, those first that may take longest; and then again what stays on the
    // device.
    void from_hosts() {
        const std::vector<std::vector<OpId>> hosts = latest_on_host(fixed_.graph);
        if (hosts.empty()) {
            return;
        }
        const Decisions before = chosen_;
        std::vector<std::uint8_t> some = hosted_;
        std::size_t taken = 0;
        for (std::size_t share = 1; share <= host_shares && !stopped(); ++share) {
            some.resize(fixed_.graph.ops().size(), 0);
            for (; taken * host_shares < share * hosts.size(); ++taken) {
                for (const OpId op : hosts[taken]) {
                    some[at(op)] = 1;
                }
            }
            ask({all(MapClass::keep), {}, eviction_, 0, some});
            if (!before.classes.empty()) {
                ask({before.classes, before.weights, before.eviction, before.slack, some});
            }
        }
        if (has_plan() && chosen_.hosted != hosted_) {
            hosted_ = chosen_.hosted;
            from_border();
            from_slack();
        }
    }

    // The best plan so far, listed for less memory.
    void from_slack() {
        for (int k = 1; has_plan() && !stopped() && k <= slacks; ++k) {
            Decisions what = chosen_;
            what.slack = most_slack * k / slacks;
            ask(what);
        }
    }

    void from_cuts(OpId p) {
        Pace pace(progress_, 0);
        const RankedCuts cuts(fixed_.graph, p, device_, capacity_, total_, pace);
        cuts.search(builder_.gaps(), linked_, [&](const Classes& one) { return ask(one); }, [&] { return stopped(); });
    }

    const FixedChoices fixed_;
    const std::optional<Graph> closed_;
    const std::vector<OpId> order_;
    bool linked_;
    Device device_;
    Bytes capacity_;
    Seconds total_ = 0, least_ = 0; // of all ops; a lower bound with these choices
    GapBuilder builder_;
    Simulator simulator_;
    Changes changes_;
    const Progress& progress_;
    const Progress interrupts_{[this](double fraction) { return progress_.tick(fraction) && false; }};
    Eviction eviction_;
    std::vector<std::uint8_t> hosted_; // ops on the host, unless the walk decides otherwise
    StepList list_, steps_;
    Decisions chosen_; // of the best plan
    Seconds best_ = Simulator::illegal;
    Annealing annealing_; // of the best plan
    Polishing polishing_;
    Decisions current_; // of the walk
    std::mt19937_64 random_;
    LateAcceptance late_{64};
    std::int64_t waited_ = 0; // moves without a better plan
    std::int64_t evaluations_ = 0;
};

} // namespace

std::optional<SelectiveSolution> selective(const Graph& graph, const Device& device, std::int64_t moves,
                                           std::uint64_t seed, bool reorder, const Progress& progress) {
    const Bytes capacity = device.memory - graph.resident();
    std::vector<std::unique_ptr<SelectiveSearch>> searches;
    const auto begin = [&](FixedChoices fixed, std::vector<OpId> order) {
        searches.push_back(std::make_unique<SelectiveSearch>(std::move(fixed), std::move(order), device, progress));
        searches.back()->begin();
    };
    const auto best = [&]() -> SelectiveSearch& {
        return **std::ranges::min_element(searches, {}, [](const auto& search) { return search->makespan(); });
    };
    try {
        FixedChoices fast = fit_choices(graph, capacity), small = fit_choices(graph, 0);
        const bool differ = fast.choice != small.choice;
        begin(std::move(fast), {});
        if (differ && !best().stopped()) {
            begin(std::move(small), {});
        }
        if (!best().stopped()) {
            auto orders = reorder ? other_orders(graph, progress) : std::vector<std::vector<OpId>>{};
            for (const std::vector<OpId>& order : orders) {
                begin(fit_choices(in_order(graph, order), capacity), order);
            }
            orders.emplace_back(); // as listed
            for (std::size_t k = 1; differ && k * graph.ops().size() <= mixed_ops; ++k) {
                const std::vector<OpId>& order = orders[(orders.size() - k % orders.size()) % orders.size()];
                begin(random_choices(order.empty() ? graph : in_order(graph, order), capacity, k), order);
            }
        }
        std::ranges::sort(searches, {}, [](const auto& search) { return search->makespan(); });
        const std::size_t finalists = std::min(searches.size(), most_finalists);
        for (std::size_t k = 0; k < finalists; ++k) {
            searches[k]->from_cuts();
        }
        const std::int64_t first = std::min(moves / 5, finalist_moves);
        for (std::size_t k = 0; k < finalists; ++k) {
            searches[k]->begin_walk(seed);
            searches[k]->walk(first);
        }
        SelectiveSearch& last = best();
        last.begin_walk(seed + 1);
        // Walk and annealing, or polishing, in turn, so that a time limit leaves both some.
        std::int64_t left = moves - first * static_cast<std::int64_t>(finalists);
        for (std::int64_t part = first_part; left > 0 && !last.stopped(); part *= 2) {
            const std::int64_t most = std::min(part, left);
            last.walk(most);
            if (reorder && last.has_plan() && last.gap() > far) {
                last.anneal(part, most, ++seed);
            }
            left -= most;
            if (left > 0) {
                last.polish(most);
            }
        }
        last.polish(moves);
    } catch (const Stopped&) {
        if (searches.empty() || !best().has_plan()) {
            throw;
        }
    }
    if (!best().has_plan()) {
        return std::nullopt;
    }
    std::int64_t evaluations = 0;
    for (const auto& search : searches) {
        evaluations += search->evaluations();
    }
    return finished(graph, best().steps(), evaluations);
}

} // namespace memsched
