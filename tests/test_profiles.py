"""The shipped profiles, planned at many limits, and the generators."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import memsched as ms
from listed import CHAIN_PLANNERS
from memsched.planners.registry import PLANNERS

NAMES = ms.profiles.names()

TINY = 1e-9


def one_in(count: int) -> list[Any]:
    """All profiles, of which one in so many is not left to the exhaustive tests."""
    rest = pytest.mark.exhaustive
    return [pytest.param(name, marks=() if place % count == 1 else rest) for place, name in enumerate(NAMES)]


def at(planner: str, chain: ms.Chain, share: float) -> int:
    """M so far from the planner's least memory to the peak."""
    least = ms.min_memory(chain, planner)
    return int(least + share * (ms.peak_memory(chain) - least))


def check(planner: str, chain: ms.Chain, share: float) -> None:
    memory = at(planner, chain, share)
    plan = PLANNERS[planner].plan
    quick = {"beam": 20, "slots": 200, "time_limit": 0.0} if planner == "pofo" else {"time_limit": 0.2}
    options = {name: value for name, value in quick.items() if name in inspect.signature(plan).parameters}
    result = plan(chain, memory, chain.provenance["link_bandwidth"], **options)
    report = ms.validate(result)
    assert report.peak_memory <= memory
    assert result.lower_bound <= report.makespan * (1 + TINY)


def test_there_are_65() -> None:
    assert len(NAMES) == len(set(NAMES)) == 65
    assert list(NAMES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_profiles_load(name: str) -> None:
    chain, document = ms.profiles.load(name), ms.profiles.document(name)
    assert chain == ms.Chain.from_json(document)
    assert chain.name == document["name"]
    assert chain.n == document["n"] == len(chain.names)
    resident = chain.provenance["resident"]
    assert chain.resident == sum(resident.values())
    assert resident["parameters"] == resident["gradients"] == document["parameters"] > 0
    assert chain.provenance == document["provenance"]
    assert {"source", "times", "gpu", "link_bandwidth"} <= set(chain.provenance)
    assert chain.provenance["link_bandwidth"] == 12.2e9
    assert [sum(sizes) for sizes in chain.pieces] == (chain.saved - chain.activation[1:]).tolist()
    assert (chain.forward_time > 0).all()
    least, peak = ms.min_memory(chain), ms.peak_memory(chain)
    assert chain.resident < least <= ms.min_memory(chain, "dynprog") < peak


@pytest.mark.parametrize("planner", ["greedy", "dynprog"])
@pytest.mark.parametrize(("name", "share"), [(name, (0.0, 0.4, 0.9)[k % 3]) for k, name in enumerate(NAMES)])
def test_plans_at_one_of_three_limits(name: str, share: float, planner: str) -> None:
    check(planner, ms.profiles.load(name), share)


@pytest.mark.slow
@pytest.mark.parametrize("planner", CHAIN_PLANNERS)
@pytest.mark.parametrize("name", one_in(64))
def test_plans_at_ten_limits(name: str, planner: str) -> None:
    for share in np.linspace(0, 1, 10):
        check(planner, ms.profiles.load(name), float(share))


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(64))
def test_auto_is_feasible_and_never_worse(name: str) -> None:
    """From the least that POFO needs."""
    chain = ms.profiles.load(name)
    for share in (0.0, 0.3):
        memory = at("pofo", chain, share)
        best = ms.plan(chain, memory, 12.2e9, time_limit=0.0)  # no search, on either side
        assert ms.validate(best).peak_memory <= memory
        assert best.lower_bound <= best.makespan
        for found in ms.compare(chain, memory, 12.2e9, time_limit=0.0).values():
            if isinstance(found, ms.Result):
                assert best.makespan <= found.makespan * (1 + TINY)


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(32))
def test_the_exact_model_is_solved_on_all_profiles(name: str) -> None:
    chain = ms.profiles.load(name)
    for share in np.linspace(0, 1, 10):
        result = ms.dynprog(chain, at("dynprog", chain, float(share)), 12.2e9, slots=None, time_limit=0.5)
        bound = result.params["model_lower_bound"]
        assert bound <= result.estimate * (1 + TINY)
        assert result.estimate <= 1.003 * bound
        ms.validate(result)


@pytest.mark.parametrize("n", [1, 2, 17])
def test_homogeneous(n: int) -> None:
    chain = ms.profiles.homogeneous(n, time=2.0, activation=3, overhead=1)
    assert chain.n == n
    assert set(chain.forward_time) == {2}
    assert set(chain.backward_time) == {4}
    assert set(chain.activation) == set(chain.gradient) == set(chain.saved) == {3}
    assert set(chain.forward_overhead) == set(chain.backward_overhead) == {1}


@pytest.mark.parametrize("tape", [True, False])
def test_random(tape: bool) -> None:
    chain = ms.profiles.random(9, seed=4, tape=tape, scale=1000)
    assert chain == ms.profiles.random(9, seed=4, tape=tape, scale=1000)
    assert chain != ms.profiles.random(9, seed=5, tape=tape, scale=1000)
    assert chain.n == 9
    assert bool((chain.saved > chain.activation[1:]).all()) is tape
    assert 10 < np.median(chain.activation) < 100_000


@pytest.mark.parametrize("n", [0, -1])
def test_generators_refuse_no_stages(n: int) -> None:
    for make in (ms.profiles.homogeneous, lambda count: ms.profiles.random(count, seed=1)):
        with pytest.raises(ms.InvalidInputError):
            make(n)
