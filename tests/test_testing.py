"""The public testing module: what it draws is legal, what it builds has the optimum it promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.testing import (
    brute_force,
    chains,
    devices,
    graphs,
    instances,
    random_repeated,
    random_schedule,
    repeated_schedules,
    schedules,
    three_partition_chain,
    two_partition_chain,
)
from oracles.exhaustive import least_makespan
from oracles.interruptible import best_fluid, least_memory, paper_instance
from oracles.to_graph_py import to_graph_py


@pytest.mark.parametrize("beta", [0, -1, math.inf, math.nan, "inf"])
def test_brute_force_takes_a_link_alone_that_is_one(beta: Any) -> None:
    """It divided by zero, and answered a negative time."""
    with pytest.raises(ms.InvalidInputError, match=r"beta is .*; it must be a positive and finite number"):
        brute_force(ms.Chain([1, 2], [2, 3], [4, 6, 5]), 100, beta)


def test_brute_force_takes_texts_as_planners_do() -> None:
    chain = ms.Chain([1, 2], [2, 3], [4000, 6000, 5000], [0, 6000, 5000])
    least, peak = ms.min_memory(chain), ms.peak_memory(chain)
    half = round(least + 0.5 * (peak - least))
    assert brute_force(chain, "50%", "1kB/s") == brute_force(chain, half, 1000.0)


def test_other_arguments_that_cannot_be() -> None:
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5])
    for call, told in (
        (lambda: brute_force(chain, "50 apples", 1.0), "M is '50 apples'"),
        (lambda: brute_force(chain, 50, "1B"), "beta is '1B'"),
        (lambda: brute_force(ms.to_graph(chain), 50, 1.0), "chain is Graph"),
        (lambda: random_schedule(ms.to_graph(chain)), "chain is Graph"),
        (lambda: random_repeated(1, max_layers=0), "max_layers is 0"),
        (lambda: random_repeated("1"), "seed is '1'"),
        (lambda: random_schedule(chain, seed=None), "seed is None"),
        (lambda: chains(max_stages=0), "max_stages is 0; it must be a whole number from 1"),
        (lambda: chains(stages=3), "chains has no argument 'stages'"),
        (lambda: graphs(max_layers=0), "max_layers is 0"),
        (lambda: repeated_schedules(max_bytes=0), "max_bytes is 0"),
        (lambda: instances(max_bandwidth=0), "max_bandwidth is 0"),
    ):
        with pytest.raises(ms.InvalidInputError, match=told):
            call()


@given(chains(), st.none() | st.integers(1, 9) | st.just("storage"))
def test_drawn_chains_have_the_graph_of_the_oracle(chain: ms.Chain, chunk: int | str | None) -> None:
    if chunk == "storage" and chain.pieces is None:
        chunk = None
    assert ms.to_graph(chain, chunk=chunk).to_json() == to_graph_py(chain.to_json(), chunk)


@given(chains(paper_form=True))
def test_paper_form(chain: ms.Chain) -> None:
    assert list(chain.saved) == list(chain.activation[1:])
    assert chain.resident == 0


@given(devices(memory=7, duplex=True))
def test_devices_keep_what_is_fixed(device: ms.Device) -> None:
    assert device.memory == 7
    assert device.duplex
    assert min(device.d2h, device.h2d) > 0


@settings(deadline=None)
@given(schedules())
def test_schedules_run_and_are_legal(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    problem, schedule, device = case
    timeline = ms.simulate(problem, schedule, device)
    report = ms.validate(problem, schedule, device)
    assert report.makespan == pytest.approx(timeline.makespan)
    assert timeline.peak_memory <= schedule.to_json()["budget"]


@given(schedules(recompute=False, chunks=False, after=False))
def test_schedules_without_options_have_none(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    problem, schedule, _ = case
    plan = schedule.to_json()
    runs = [step["run"] for step in plan["steps"] if "run" in step]
    assert len(runs) == len(set(runs)) == 2 * len(problem.forward_time) + 1
    assert plan["chunk"] is None
    assert not any(step.get("skip") or step.get("after") for step in plan["steps"])


@settings(deadline=None)
@given(instances())
def test_brute_force_is_the_oracle(instance: tuple[ms.Chain, int, float]) -> None:
    chain, memory, beta = instance
    makespan, offloaded = brute_force(chain, memory, beta)
    found = best_fluid(**paper_instance(chain, memory), beta=beta)
    assert found is not None
    assert makespan == pytest.approx(found[0])
    assert len(offloaded) <= len(found[1]) or makespan < found[0]  # by rounding


@given(chains(max_stages=4))
def test_brute_force_names_the_least_memory(chain: ms.Chain) -> None:
    lists = paper_instance(chain, 0)
    least = int(least_memory(*(lists[k] for k in ("x", "y", "exF", "exB")))) + chain.resident
    assert brute_force(chain, least, 1.0)[0] >= sum(chain.forward_time)
    with pytest.raises(ms.InfeasibleError) as caught:
        brute_force(chain, least - 1, 1.0)
    assert caught.value.min_memory == least


@given(instances(max_stages=3))
def test_the_plan_of_the_exhaustive_search_takes_as_long_as_it_says(
    instance: tuple[ms.Chain, int, float],
) -> None:
    chain, memory, beta = instance
    found = least_makespan(ms.to_graph(chain).to_json(), memory, {"bandwidth": beta})
    assert found is not None
    plan = {"format": "memsched-plan/1", "planner": {"name": "exhaustive"}, "graph": "chain", "chunk": None}
    plan |= {"rounds": [[1, 1]], "budget": memory, "memory": "fluid", "steps": found.steps}
    timeline = ms.simulate(chain, ms.Schedule.from_json(plan), ms.Device(memory, beta))
    assert timeline.makespan == pytest.approx(found.makespan)


@pytest.mark.parametrize(
    ("values", "target", "exists"),
    [
        ([7, 7, 7], 21, True),
        ([8, 8, 9, 8, 8, 9], 25, True),
        ([8, 8, 8, 8, 8, 10], 25, False),
        pytest.param([4, 5, 6, 4, 5, 6], 15, True, marks=pytest.mark.slow),
        pytest.param([4, 4, 4, 6, 6, 6], 15, False, marks=pytest.mark.slow),
    ],
)
def test_three_partition(values: list[int], target: int, exists: bool) -> None:
    chain, memory, beta, seconds = three_partition_chain(values, target)
    found = least_makespan(ms.to_graph(chain).to_json(), memory, {"bandwidth": beta})
    assert found is not None
    assert found.makespan >= seconds
    assert (found.makespan == seconds) is exists


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7).filter(lambda values: sum(values) % 2 == 0))
def test_two_partition(values: list[int]) -> None:
    sums = {0}
    for value in values:
        sums |= {total + value for total in sums}
    chain, memory, beta, seconds = two_partition_chain(values)
    makespan, _ = brute_force(chain, memory, beta)
    assert makespan >= seconds - 1e-9
    assert (makespan == pytest.approx(seconds)) is (sum(values) / 2 in sums)


@pytest.mark.parametrize(("values", "target"), [([7, 7], 14), ([7, 7, 8], 21), ([5, 5, 11], 21), ([], 1)])
def test_no_three_partition_instance(values: list[int], target: int) -> None:
    with pytest.raises(ValueError, match="3-PARTITION"):
        three_partition_chain(values, target)


@pytest.mark.parametrize("values", [[1, 2], [0, 2], []])
def test_no_two_partition_instance(values: list[int]) -> None:
    with pytest.raises(ValueError, match="2-PARTITION"):
        two_partition_chain(values)
