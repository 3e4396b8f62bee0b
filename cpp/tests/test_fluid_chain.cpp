// The interruptible model from inside: transitions, and bounds against every completion.
#include "instances.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

using namespace memsched;
using namespace memsched::testing;

namespace {

// Walks the whole tree of decisions. visit(stages decided, state, decisions, best completion).
using Visit = std::function<void(int, const FluidState&, const std::vector<std::uint8_t>&, double)>;

double best_completion(const FluidModel& model, const FluidState& state, std::vector<std::uint8_t>& decided,
                       const Visit& visit) {
    const int i = static_cast<int>(decided.size());
    double best = infinity;
    FluidState kept{}, offloaded{};
    if (i == model.stages()) {
        best = model.compute() + state.idle + model.turn_idle(state);
    } else if (model.stage(i).advance(state, kept, offloaded)) {
        decided.push_back(0);
        best = best_completion(model, kept, decided, visit);
        decided.back() = 1;
        best = std::min(best, best_completion(model, offloaded, decided, visit));
        decided.pop_back();
    }
    visit(i, state, decided, best);
    return best;
}

} // namespace

TEST_CASE("the transitions add up, and lead where fluid_makespan leads") {
    Dice dice(7);
    for (int round = 0; round < 150; ++round) {
        const FluidChain chain = random_fluid_chain(dice, dice.roll(1, 8));
        const FluidModel model(chain);
        std::vector<std::uint8_t> decided;
        std::size_t leaves = 0;
        const double best =
            best_completion(model, model.initial(), decided,
                            [&](int i, const FluidState& state, const std::vector<std::uint8_t>& set, double value) {
                                double moved = 0, held = chain.activation[static_cast<std::size_t>(i)];
                                for (std::size_t k = 0; k < set.size(); ++k) {
                                    (set[k] ? moved : held) += chain.activation[k];
                                }
                                CHECK(state.moved == moved);
                                CHECK(state.held == held);
                                CHECK(state.idle >= 0);
                                CHECK(state.held <= chain.capacity);
                                if (i == model.stages()) {
                                    ++leaves;
                                    CHECK(model.turn_idle(state) >= 0);
                                    CHECK(fluid_makespan(chain, set) == value);
                                }
                            });
        double least = infinity; // again, without the tree
        std::size_t feasible = 0;
        for (std::uint32_t number = 0; number < (1U << chain.forward.size()); ++number) {
            const double makespan = fluid_makespan(chain, flags_of(number, chain.forward.size()));
            least = std::min(least, makespan);
            feasible += makespan < infinity ? 1 : 0;
        }
        CHECK(least == best);
        CHECK(feasible == leaves);
    }
}

TEST_CASE("no completion of a state is better than its lower bound") {
    Dice dice(8);
    for (int round = 0; round < 400; ++round) {
        const FluidChain chain = random_fluid_chain(dice, dice.roll(1, 9));
        const FluidModel model(chain);
        std::vector<std::uint8_t> decided;
        best_completion(model, model.initial(), decided,
                        [&](int i, const FluidState& state, const std::vector<std::uint8_t>&, double best) {
                            if (i < model.stages()) {
                                CHECK(model.bound(i).of(state) <= best);
                            }
                        });
    }
}

TEST_CASE("the least capacity is where a set begins to fit") {
    Dice dice(9);
    for (int round = 0; round < 200; ++round) {
        FluidChain chain = random_fluid_chain(dice, dice.roll(1, 8));
        const std::vector<std::uint8_t> everything(chain.forward.size(), 1);
        chain.capacity = fluid_min_capacity(chain);
        CHECK(fluid_makespan(chain, everything) < infinity);
        chain.capacity -= 1;
        CHECK(fluid_makespan(chain, everything) == infinity);
    }
}

TEST_CASE("columns that do not fit together are refused") {
    Dice dice(10);
    const FluidChain good = random_fluid_chain(dice, 3);
    CHECK_NOTHROW(check_fluid_chain(good));
    const auto refused = [&](const std::function<void(FluidChain&)>& change) {
        FluidChain chain = good;
        change(chain);
        CHECK_THROWS_AS(check_fluid_chain(chain), std::invalid_argument);
    };
    refused([](FluidChain& c) { c = {}; });
    refused([](FluidChain& c) { c.backward.pop_back(); });
    refused([](FluidChain& c) { c.activation.pop_back(); });
    refused([](FluidChain& c) { c.gradient[1] = -1; });
    refused([](FluidChain& c) { c.forward_overhead[0] = infinity; });
    refused([](FluidChain& c) { c.backward_overhead[2] = -infinity; });
    refused([](FluidChain& c) { c.capacity = std::numeric_limits<double>::quiet_NaN(); });
}
