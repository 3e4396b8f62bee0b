// check_schedule and resolve: which step they blame, and names to ids and back.
#include "instances.h"
#include "memsched/model/schedule.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <functional>

using namespace memsched;
using namespace memsched::testing;

namespace {

Graph graph() {
    ChainColumns c;
    c.forward_time = {1, 2};
    c.backward_time = {2, 3};
    c.activation = {4, 6, 5};
    c.gradient = {0, 6, 5};
    c.saved = {9, 5};
    ChainGiven given;
    given.saved = true;
    GraphData data;
    const Graph plain = to_graph(Chain(c, given));
    data.tensors = plain.tensors();
    data.ops = plain.ops();
    data.ops[1].choices.push_back({"fast", 1, 3}); // F2 has two ways to run
    return Graph(std::move(data));
}

NamedStep named(Verb verb, const std::string& name) {
    NamedStep step;
    step.verb = verb;
    step.name = name;
    return step;
}

Schedule plan() {
    Schedule s;
    s.budget = 100;
    s.steps = {named(Verb::run, "F1"), named(Verb::offload, "a0"), named(Verb::free, "a0"), named(Verb::run, "F2")};
    s.steps[0].skip = {"tape1"};
    s.steps[3].alg = "fast";
    s.steps[3].after = {1};
    return s;
}

// The step blamed when the changed plan is checked and resolved; -2 when nothing is thrown.
StepId blamed(const std::function<void(Schedule&)>& change) {
    Schedule s = plan();
    change(s);
    try {
        check_schedule(s);
        resolve(graph(), s);
    } catch (const ScheduleError& error) {
        return error.step;
    }
    return -2;
}

} // namespace

TEST_CASE("names survive ids") {
    const Schedule s = plan();
    const StepList list = resolve(graph(), s);
    REQUIRE(list.steps.size() == 4);
    CHECK(list.steps[0].skip);
    CHECK(list.steps[3].choice == 1);
    CHECK(list.after[static_cast<std::size_t>(list.steps[3].after)] == std::vector<StepId>{1});
    CHECK(name_steps(graph(), list) == s.steps);
}

TEST_CASE("the step at fault is blamed") {
    CHECK(blamed([](Schedule&) {}) == -2);
    CHECK(blamed([](Schedule& s) { s.budget = 0; }) == -1);
    CHECK(blamed([](Schedule& s) { s.rounds.clear(); }) == -1);
    CHECK(blamed([](Schedule& s) { s.rounds = {{1, 0}}; }) == -1);
    CHECK(blamed([](Schedule& s) { s.rounds = {{2, 1}}; }) == -1); // the graph's batch is 1
    CHECK(blamed([](Schedule& s) { s.steps[2].after = {1}; }) == 2);
    CHECK(blamed([](Schedule& s) { s.steps[1].after = {1}; }) == 1);
    CHECK(blamed([](Schedule& s) { s.steps[3].after = {-1}; }) == 3);
    CHECK(blamed([](Schedule& s) { s.steps[1].name = "F1"; }) == 1); // an op, where a tensor is wanted
    CHECK(blamed([](Schedule& s) { s.steps[3].alg = ""; }) == 3);    // one of two
    CHECK(blamed([](Schedule& s) { s.steps[3].alg = "slow"; }) == 3);
    CHECK(blamed([](Schedule& s) { s.steps[0].skip = {"a1"}; }) == 0);
    CHECK(blamed([](Schedule& s) { s.steps[0].skip = {"tape1", "tape1"}; }) == 0);
    CHECK(blamed([](Schedule& s) { s.steps[0].at = {{"a1", -4}}; }) == 0);
}
