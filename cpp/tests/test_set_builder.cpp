// From offload sets to steps: what is built can run, and the eager place of the prefetches is the best one.
#include "instances.h"
#include "memsched/build/makespans.h"
#include "memsched/simulate/simulate.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace memsched;
using namespace memsched::testing;

namespace {

struct SetProblem {
    Graph graph;
    Bytes budget;
    std::vector<std::uint8_t> travels;
};

SetProblem random_problem(Dice& dice, int stages) {
    Graph graph = to_graph(random_chain(dice, stages));
    const Bytes budget = min_memory(graph) + dice.roll(0, 12);
    std::vector<std::uint8_t> travels(graph.tensors().size(), 0);
    const SetBuilder builder(graph);
    for (const TensorId t : builder.movable()) {
        travels[static_cast<std::size_t>(t)] = dice.roll(0, 2) != 0;
    }
    return {std::move(graph), budget, std::move(travels)};
}

// A list without its prefetches, and what they fetch, in order.
struct Skeleton {
    std::vector<Step> steps;
    std::vector<TensorId> fetched;
    std::vector<std::size_t> runs; // where the runs stand in steps
};

Skeleton skeleton_of(const StepList& list) {
    Skeleton s;
    for (const Step& step : list.steps) {
        if (step.verb == Verb::prefetch) {
            s.fetched.push_back(step.id);
            continue;
        }
        if (step.verb == Verb::run) {
            s.runs.push_back(s.steps.size());
        }
        s.steps.push_back(step);
    }
    return s;
}

// Whether every offload has ended when the compute stream is free for the first run behind the first prefetch.
bool offloads_end_first(const StepList& list, const Timeline& timeline) {
    Seconds offloaded = 0, computed = 0;
    bool fetching = false;
    for (std::size_t k = 0; k < list.steps.size(); ++k) {
        const Verb verb = list.steps[k].verb;
        fetching = fetching || verb == Verb::prefetch;
        offloaded = verb == Verb::offload ? std::max(offloaded, timeline.end[k]) : offloaded;
        computed = verb == Verb::run && !fetching ? std::max(computed, timeline.end[k]) : computed;
    }
    return offloaded <= computed;
}

// The least makespan over all ways to put the prefetches, in their order, each right before some run at or after
// `first`.
class Placements {
  public:
    Placements(const Skeleton& skeleton, const SetProblem& p, const Device& device)
        : skeleton_(skeleton), simulator_(p.graph, device, p.budget) {}

    Seconds best(std::size_t first) {
        at_.assign(skeleton_.fetched.size(), 0);
        best_ = Simulator::illegal;
        place(0, first);
        return best_;
    }

  private:
    void place(std::size_t fetch, std::size_t first) {
        if (fetch == at_.size()) {
            best_ = std::min(best_, simulator_.makespan(list()));
            return;
        }
        for (std::size_t run = first; run < skeleton_.runs.size(); ++run) {
            at_[fetch] = run;
            place(fetch + 1, run);
        }
    }

    StepList list() const {
        StepList list;
        std::size_t run = 0, fetch = 0;
        for (std::size_t k = 0; k < skeleton_.steps.size(); ++k) {
            if (run < skeleton_.runs.size() && skeleton_.runs[run] == k) {
                for (; fetch < at_.size() && at_[fetch] == run; ++fetch) {
                    list.prefetch(skeleton_.fetched[fetch]);
                }
                ++run;
            }
            list.steps.push_back(skeleton_.steps[k]);
        }
        return list;
    }

    const Skeleton& skeleton_;
    Simulator simulator_;
    std::vector<std::size_t> at_;
    Seconds best_ = 0;
};

} // namespace

TEST_CASE("feature maps and inputs may travel, gradients may not") {
    Dice dice(19);
    for (int round = 0; round < 50; ++round) {
        const Graph graph = to_graph(random_chain(dice, dice.roll(1, 6)));
        const SetBuilder builder(graph);
        for (const TensorId t : builder.movable()) {
            INFO(graph.tensor(t).name);
            CHECK(graph.tensor(t).role != Role::gradient);
        }
    }
}

TEST_CASE("what is built runs, whatever the link; what is not built has no room") {
    Dice dice(4);
    int built = 0, refused = 0;
    for (int round = 0; round < 2000; ++round) {
        const SetProblem p = random_problem(dice, dice.roll(1, 6));
        SetBuilder builder(p.graph);
        StepList list;
        if (builder.build(p.travels, p.budget - p.graph.resident(), {}, list)) {
            ++built;
            for (const double bandwidth : {0.1, 1.0, 7.0}) {
                const Device device = device_of(p.budget, bandwidth, dice.roll(0, 1) == 1);
                CHECK(Simulator(p.graph, device, p.budget).makespan(list) < Simulator::illegal);
            }
            continue;
        }
        ++refused;
        CHECK_THROWS_AS(offload_set_steps(p.graph, p.budget, p.travels, {}), InfeasibleError);
        // With the memory that the prefetches need to stand right before their readers, it builds.
        CHECK(builder.build(p.travels, peak_memory(p.graph), {}, list));
        CHECK(Simulator(p.graph, device_of(p.budget, 1), p.budget).makespan(list) == Simulator::illegal);
    }
    CHECK(built > 500);
    CHECK(refused > 100);
}

TEST_CASE("where no run waits for an offload, no other place of the prefetches is faster than the eager one") {
    // A prefetch counts from its place in the list (E7). While offloads are still under way, an early place can hold up
    // the runs behind it. Once they have ended, earlier is never worse.
    Dice dice(5);
    int settled = 0;
    for (int round = 0; round < 3000; ++round) {
        const SetProblem p = random_problem(dice, dice.roll(1, 4));
        const Device device = device_of(p.budget, dice.roll(1, 4), dice.roll(0, 1) == 1);
        SetBuilder builder(p.graph);
        StepList list;
        if (!builder.build(p.travels, p.budget - p.graph.resident(), {}, list)) {
            continue;
        }
        const Skeleton skeleton = skeleton_of(list);
        if (skeleton.fetched.empty() || skeleton.fetched.size() > 4) {
            continue;
        }
        OpId last_offloaded = -1;
        for (const TensorId t : skeleton.fetched) {
            last_offloaded = std::max(last_offloaded, p.graph.writer(t));
        }
        const Timeline eager = simulate(p.graph, list, device, p.budget);
        const Seconds best = Placements(skeleton, p, device).best(static_cast<std::size_t>(last_offloaded + 1));
        CHECK(eager.makespan >= best);
        if (offloads_end_first(list, eager)) {
            ++settled;
            CHECK(eager.makespan == doctest::Approx(best));
        }
    }
    CHECK(settled > 200);
}

TEST_CASE("a window puts a prefetch so many ops ahead, and fails where there is no room") {
    ChainColumns c;
    c.forward_time.assign(3, 1);
    c.backward_time.assign(3, 1);
    c.activation = {2, 2, 2, 2};
    c.gradient.assign(4, 0);
    const Graph graph = to_graph(Chain(c, {}));
    const std::vector<std::uint8_t> travels{1, 0, 0, 0, 0, 0, 0, 0}; // a0, which B1, the last of 7 ops, reads
    const auto runs_after = [&](int ahead, Bytes capacity) {
        StepList list;
        if (!SetBuilder(graph).build(travels, capacity, {FetchRule::Kind::ops, ahead}, list)) {
            return -1;
        }
        const auto fetch =
            std::find_if(list.steps.begin(), list.steps.end(), [](const Step& s) { return s.verb == Verb::prefetch; });
        return static_cast<int>(
            std::count_if(fetch, list.steps.end(), [](const Step& s) { return s.verb == Verb::run; }));
    };
    CHECK(runs_after(1, 100) == 2);
    CHECK(runs_after(2, 100) == 3);
    CHECK(runs_after(50, 100) == 6); // not before F1 has read it
    CHECK(runs_after(1, 6) == 2);
    CHECK(runs_after(2, 6) == -1);
}

TEST_CASE("every rule of fetches serves sets, and a soft one wherever fetches on demand fit") {
    Dice dice(7);
    int softened = 0;
    for (int round = 0; round < 500; ++round) {
        const SetProblem p = random_problem(dice, dice.roll(1, 6));
        SetBuilder builder(p.graph);
        StepList list;
        const bool fits = builder.build(p.travels, p.budget - p.graph.resident(), {FetchRule::Kind::demand}, list);
        for (const auto kind : all_kinds) {
            const int ahead = dice.roll(1, 3);
            const bool strict = builder.build(p.travels, p.budget - p.graph.resident(), {kind, ahead}, list);
            CHECK(builder.build(p.travels, p.budget - p.graph.resident(), {kind, ahead, true}, list) == fits);
            CHECK((fits || !strict));
            softened += fits && !strict ? 1 : 0;
            if (fits) {
                CHECK(Simulator(p.graph, device_of(p.budget, 1), p.budget).makespan(list) < Simulator::illegal);
            }
        }
    }
    CHECK(softened > 20);
}

TEST_CASE("makespans of many sets are those of each set alone") {
    Dice dice(6);
    for (int round = 0; round < 100; ++round) {
        const SetProblem p = random_problem(dice, dice.roll(1, 5));
        const Device device = device_of(p.budget, 2);
        const std::size_t width = p.graph.tensors().size();
        std::vector<std::uint8_t> rows;
        for (int r = 0; r < 5; ++r) {
            const SetProblem other{p.graph, p.budget, dice.flags(width)};
            rows.insert(rows.end(), other.travels.begin(), other.travels.end());
        }
        const std::vector<Seconds> all = offload_set_makespans(p.graph, device, p.budget, rows, {}, true, {});
        REQUIRE(all.size() == 5);
        for (std::size_t r = 0; r < all.size(); ++r) {
            const auto from = rows.begin() + static_cast<std::ptrdiff_t>(r * width);
            StepList list;
            SetBuilder builder(p.graph);
            const bool built = builder.build({from, from + static_cast<std::ptrdiff_t>(width)},
                                             p.budget - p.graph.resident(), {}, list);
            CHECK(all[r] == (built ? Simulator(p.graph, device, p.budget).makespan(list) : Simulator::illegal));
        }
    }
    const Graph graph = to_graph(random_chain(dice, 2));
    const std::vector<std::uint8_t> short_row(graph.tensors().size() - 1);
    CHECK_THROWS_AS(offload_set_makespans(graph, device_of(99, 1), 99, short_row, {}, true, {}), std::invalid_argument);
    CHECK_THROWS_AS(offload_set_steps(graph, 99, short_row, {}), std::invalid_argument);
}
