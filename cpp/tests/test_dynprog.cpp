// The two dynamic programs against each other and against all sets.
#include "instances.h"
#include "memsched/planners/offload/dynprog.h"
#include "memsched/support/errors.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

using namespace memsched;
using namespace memsched::testing;

namespace {

double brute_force(const FluidChain& chain) {
    double best = std::numeric_limits<double>::infinity();
    for (std::uint32_t number = 0; number < (1U << chain.forward.size()); ++number) {
        best = std::min(best, fluid_makespan(chain, flags_of(number, chain.forward.size())));
    }
    return best;
}

} // namespace

TEST_CASE("both dynamic programs find the optimum, and a set that has it") {
    Dice dice(11);
    for (int round = 0; round < 500; ++round) {
        const FluidChain chain = random_fluid_chain(dice, dice.roll(1, 9));
        const double optimum = brute_force(chain);
        for (const DynprogSolution& s : {dynprog(chain, {}, {}), dynprog_hash(chain, {}, {})}) {
            CHECK(s.makespan == optimum);
            CHECK(s.lower_bound == doctest::Approx(optimum));
            CHECK(s.optimal);
            CHECK(fluid_makespan(chain, s.offloaded) == optimum);
        }
    }
}

TEST_CASE("on longer chains, where the first beam is too narrow, they still agree") {
    Dice dice(12);
    for (int round = 0; round < 30; ++round) {
        const FluidChain chain = random_fluid_chain(dice, dice.roll(14, 26));
        const DynprogSolution hash = dynprog_hash(chain, {}, {});
        const DynprogSolution fast = dynprog(chain, {}, {});
        CHECK(fast.makespan == hash.makespan);
        CHECK(fast.optimal);
        CHECK(fluid_makespan(chain, fast.offloaded) == fast.makespan);
        CHECK(fluid_makespan(chain, hash.offloaded) == hash.makespan);
    }
}

TEST_CASE("a gap or a bound on the states leaves a true set and a true bound") {
    Dice dice(13);
    for (int round = 0; round < 30; ++round) {
        const FluidChain chain = random_fluid_chain(dice, dice.roll(10, 24));
        const double optimum = dynprog_hash(chain, {}, {}).makespan;
        for (const DynprogOptions& options : {DynprogOptions{0.05, 40'000'000}, DynprogOptions{0, 20'000}}) {
            const DynprogSolution s = dynprog(chain, options, {});
            CHECK(fluid_makespan(chain, s.offloaded) == s.makespan);
            CHECK(s.makespan >= optimum);
            CHECK(s.lower_bound <= optimum * (1 + 1e-12));
            CHECK(s.makespan <= s.lower_bound * 1.05 * (1 + 1e-12));
        }
    }
}

TEST_CASE("hash tables that outgrow their bound are an error, not a wrong answer") {
    Dice dice(14);
    const FluidChain chain = random_fluid_chain(dice, 30);
    CHECK_THROWS_AS(dynprog_hash(chain, {0, 10}, {}), std::length_error);
}

TEST_CASE("below the least capacity both say how much is needed") {
    Dice dice(15);
    for (int round = 0; round < 50; ++round) {
        FluidChain chain = random_fluid_chain(dice, dice.roll(1, 6));
        const double least = fluid_min_capacity(chain);
        if (least == 0) {
            continue;
        }
        chain.capacity = least - 1;
        const auto needed = [&](auto planner) {
            try {
                planner(chain, DynprogOptions{}, Progress{});
            } catch (const InfeasibleError& error) {
                return error.min_memory;
            }
            return Bytes{-1};
        };
        CHECK(needed(dynprog) == static_cast<Bytes>(least));
        CHECK(needed(dynprog_hash) == static_cast<Bytes>(least));
    }
}
