"""The bounds: equal to a linear program, below the best schedule there is, and below every planner."""

from __future__ import annotations

import inspect
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS
from memsched import _core
from memsched.planners.registry import PLANNERS
from memsched.testing import chains, devices, instances, schedules
from oracles.exhaustive import least_makespan
from oracles.fractional_lp import aggregate_lp, from_graph

MANY = settings(max_examples=2 * settings().max_examples)
FEW = settings(max_examples=max(10, settings().max_examples // 2))
TINY = 1e-9


def read(device: ms.Device) -> dict[str, Any]:
    """The device as the oracles take it."""
    return {key: getattr(device, key) for key in ("d2h", "h2d", "duplex", "latency")}


@st.composite
def limited(draw: st.DrawFn, latency: int = 2, **options: Any) -> tuple[ms.Chain, ms.Device]:
    """A chain with tapes and resident bytes and a device from the least memory to the peak."""
    chain = draw(chains(**options))
    least = max(1, ms.min_memory(chain))
    memory = draw(st.integers(least, max(least, ms.peak_memory(chain))))
    return chain, draw(devices(memory=memory, max_latency=latency))


def by_program(problem: ms.Chain | ms.Graph, device: ms.Device) -> float:
    graph = ms.to_graph(problem) if isinstance(problem, ms.Chain) else problem
    value = aggregate_lp(from_graph(graph.to_json(), device.memory, read(device)))
    return inf if value is None else value


@MANY
@given(limited(latency=0, max_stages=6), st.none() | st.integers(1, 9))
def test_fractional_is_the_linear_program(case: tuple[ms.Chain, ms.Device], chunk: int | None) -> None:
    chain, device = case
    graph = ms.to_graph(chain, chunk=chunk)
    found = ms.bounds(graph, device=device)
    assert found.fractional == pytest.approx(by_program(graph, device), abs=1e-6)
    assert found.fractional == pytest.approx(ms.bounds(chain, device=device).fractional)  # pieces change nothing


@FEW
@given(instances(max_stages=10))
def test_fractional_is_the_linear_program_on_the_chains_of_the_paper(
    instance: tuple[ms.Chain, int, float],
) -> None:
    chain, memory, beta = instance
    found = ms.bounds(chain, memory, beta)
    assert found.fractional == pytest.approx(by_program(chain, ms.Device(memory, beta)), abs=1e-6)
    over = ms.peak_memory(chain) - memory
    assert found.transfer == pytest.approx(2 * over / beta)
    assert found.compute == chain.forward_time.sum() + chain.backward_time.sum()
    assert found.best == found.fractional >= max(found.compute, found.transfer) - TINY
    assert found.interruptible is not None
    assert found.fractional <= found.interruptible + TINY * found.interruptible
    assert found.interruptible_proven


@FEW
@given(limited(max_stages=3, max_bytes=6))
def test_no_schedule_is_below_the_bound(case: tuple[ms.Chain, ms.Device]) -> None:
    """Half duplex and duplex, with and without latency, with tapes: against a search over all schedules."""
    chain, device = case
    try:
        found = least_makespan(ms.to_graph(chain).to_json(), device.memory, read(device), max_states=5_000)
    except RuntimeError:
        assume(False)
    assert found is not None
    bounds = ms.bounds(chain, device=device)
    assert max(bounds.compute, bounds.transfer, bounds.fractional) <= found.makespan + TINY
    assert bounds.best <= found.makespan + TINY


@MANY
@given(limited(max_stages=6), st.integers(1, 9), st.sampled_from([1.5, 2, inf]))
def test_more_memory_or_a_faster_link_never_raises_a_bound(
    case: tuple[ms.Chain, ms.Device], more: int, factor: float
) -> None:
    chain, device = case
    before = ms.bounds(chain, device=device)
    more_memory = ms.bounds(chain, device.memory + more, device=device)
    either = [
        ms.Device(device.memory, d2h=device.d2h * d2h, h2d=device.h2d * h2d, duplex=device.duplex)
        for d2h, h2d in ((factor, 1), (1, factor))
    ]
    for after in (more_memory, *(ms.bounds(chain, device=faster) for faster in either)):
        for name in ("compute", "transfer", "fractional", "best"):
            assert getattr(after, name) <= getattr(before, name) * (1 + TINY)
    assert more_memory.compute == before.compute


@given(limited(max_stages=6))
def test_with_recomputation_less_is_certain(case: tuple[ms.Chain, ms.Device]) -> None:
    chain, device = case
    without, with_it = ms.bounds(chain, device=device), ms.bounds(chain, device=device, recompute=True)
    assert with_it.best == with_it.recompute == without.recompute
    assert with_it.compute <= with_it.recompute
    graph = ms.to_graph(chain)
    parts = _core.cut_bound(graph, device, device.memory)[0], _core.recompute_bound(graph, device, device.memory)
    assert max(parts) <= without.best * (1 + TINY)  # these hold for parts of tensors, as the fractional bound does
    assert (with_it.transfer, with_it.fractional) == (without.transfer, without.fractional)


@given(schedules(max_stages=4))
def test_no_schedule_beats_the_bound_with_recomputation(case: tuple[ms.Chain, ms.Schedule, ms.Device]) -> None:
    """Random legal schedules, which run forwards again, skip tapes, and send and fetch at random."""
    chain, schedule, device = case
    makespan = ms.simulate(chain, schedule, device).makespan
    memory = min(schedule.budget, device.memory)
    assert ms.bounds(chain, memory, device=device, recompute=True).recompute <= makespan * (1 + TINY) + TINY


def test_the_bound_with_recomputation_by_hand() -> None:
    """F2 and B2 fill the memory with a1, a2 and tape2, and B1 needs the 12 bytes of a0 and tape1 afterwards.

    At 4 bytes a second they come and go within the 9 seconds of compute. At 2 bytes a second, x bytes leave in x / 2
    seconds before F2 starts, then F2, B2 and B1 take 6, and F1 again, for the 9 bytes of tape1, 3 (12 - x) / 9; all
    runs take 9 and the latter: both make 11 at x = 6. Without a link nothing makes a0 again. Whole tensors come after
    B2, or F1 runs after it: 3 seconds more in either case.
    """
    chain = ms.Chain([3, 1], [4, 1], [3, 2, 2], [0, 0, 0], saved=[11, 12])
    for bandwidth, expected in ((4.0, 9.0), (2.0, 11.0), (0.0, inf)):
        found = ms.bounds(chain, 14, bandwidth, recompute=True)
        graph, device = ms.to_graph(chain), ms.Device(14, bandwidth)
        parts = _core.cut_bound(graph, device, 14)[0], _core.recompute_bound(graph, device, 14)
        assert max(parts) == pytest.approx(expected)
        assert found.recompute == pytest.approx(12.0 if bandwidth else inf)
        assert found.compute == 9


@pytest.mark.parametrize("planner", CHAIN_PLANNERS)
@FEW
@given(case=limited(max_stages=6), chunk=st.none() | st.integers(2, 9))
def test_every_planner_stays_above_the_bound(planner: str, case: tuple[ms.Chain, ms.Device], chunk: int | None) -> None:
    chain, device = case
    plan = PLANNERS[planner].plan
    options = {"time_limit": 0.0} if "time_limit" in inspect.signature(plan).parameters else {}
    try:
        result = plan(chain, device=device, chunk=chunk, **options)
    except ms.InfeasibleError:
        assert planner in ("tflms", "dynprog", "pofo", "rotor")  # they need more than the least of all plans
        return
    graph = ms.to_graph(chain, chunk=result.schedule.chunk)
    kinds = (False, True) if planner == "offload" else (PLANNERS[planner].recomputes,)  # it takes the larger of both
    best = max(ms.bounds(graph, device=device, recompute=free).best for free in kinds)
    assert result.lower_bound == pytest.approx(min(best, result.makespan))
    assert best <= result.makespan * (1 + TINY) + TINY


SMALL = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 0, 0])


def test_small_by_hand() -> None:
    """F2 waits for 2 bytes to leave, and B1 for them to return: 2 + 1 + 1 + 2 + 1."""
    found = ms.bounds(SMALL, 10, 1.0)
    assert (found.compute, found.transfer, found.fractional, found.best) == (4, 4, 7, 7)
    assert found.interruptible == 9


def test_no_link() -> None:
    for device in (ms.Device(10), ms.Device(10, d2h=1.0, h2d=0.0), ms.Device(10, d2h=0.0, h2d=1.0)):
        found = ms.bounds(SMALL, device=device)
        assert (found.compute, found.fractional, found.best) == (4, inf, inf)
        assert found.interruptible is None
        assert ms.bounds(SMALL, device=device, recompute=True).best == inf  # a0 is nobody's output
    fits = ms.bounds(SMALL, 12)
    assert (fits.transfer, fits.fractional, fits.best) == (0, 4, 4)


def test_a_free_link() -> None:
    found = ms.bounds(SMALL, 8, inf)
    assert (found.transfer, found.fractional, found.best, found.interruptible) == (0, 4, 4, 4)
    one_way = ms.bounds(SMALL, device=ms.Device(10, d2h=inf, h2d=1.0))
    assert (one_way.transfer, one_way.fractional) == (2, 6)  # back in [3, 5], after B2


def test_too_little_memory_has_no_schedule() -> None:
    found = ms.bounds(SMALL, 7, 1.0)
    assert (found.compute, found.best, found.interruptible) == (4, inf, None)


def test_the_interruptible_bound_says_when_it_is_not_proven() -> None:
    chain = ms.profiles.load("densenet201-224-b32")
    least, peak = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    found = ms.bounds(chain, int(least + 0.1 * (peak - least)), 12.2e9, time_limit=0)
    assert found.interruptible is not None
    assert found.interruptible >= found.transfer * (1 - TINY)
    exact = ms.dynprog(chain, int(least + 0.1 * (peak - least)), 12.2e9, slots=None, time_limit=1)
    assert exact.estimate is not None
    assert found.interruptible <= exact.estimate * (1 + TINY)


def least_in_class(chain: ms.Chain, device: ms.Device) -> float:
    """The least makespan over all sets of whole tensors, of plans whose prefetches start after the last offload."""
    graph, least = ms.to_graph(chain), inf
    movable = _core.movable_tensors(graph)
    for chosen in product((False, True), repeat=len(movable)):
        travels = np.zeros(_core.tensor_count(graph), bool)
        travels[movable] = chosen
        try:
            schedule = _core.offload_set_schedule(graph, device.memory, travels, {"name": "oracle"})
        except ms.InfeasibleError:
            continue
        line = ms.simulate(graph, schedule, device)
        sent = [end for step, end in zip(schedule.steps, line.end, strict=True) if "offload" in step]
        fetched = [start for step, start in zip(schedule.steps, line.start, strict=True) if "prefetch" in step]
        if max(sent, default=0.0) <= min(fetched, default=inf):
            least = min(least, line.makespan)
    return least


@MANY
@given(limited(max_stages=5, paper_form=True))
def test_no_plan_of_its_class_is_below_the_interruptible_bound(case: tuple[ms.Chain, ms.Device]) -> None:
    """Where the directions differ in bandwidth, the bound was that of their harmonic mean."""
    chain, device = case
    found = ms.bounds(chain, device=device)
    assert found.interruptible is not None or not found.interruptible_proven
    if found.interruptible is not None:
        assert found.interruptible <= least_in_class(chain, device) * (1 + TINY)
    if device.memory >= ms.min_memory(chain, "dynprog"):
        result = ms.dynprog(chain, device=device, slots=None)
        if result.params["proven"]:
            assert result.estimate is not None
            assert result.estimate <= result.makespan * (1 + TINY)


def test_directions_that_differ_have_no_interruptible_bound_unless_all_fits() -> None:
    """13.5 seconds were proven; the plan takes 11, the fractional bound."""
    chain = ms.Chain([10, 1], [0, 0], [10, 1, 1], [0, 1, 9])
    device = ms.Device(17, d2h=1.0, h2d=inf)
    assert least_in_class(chain, device) == 11
    for memory, expected in ((17, None), (22, 11)):
        found = ms.bounds(chain, memory, device=device)
        assert (found.interruptible, found.interruptible_proven) == (expected, expected is not None)
        for method in ("pruned", "hash"):
            result = ms.dynprog(chain, memory, device=device, slots=None, method=method)
            assert result.makespan == 11
            assert result.params["proven"] is (expected is not None)
            assert result.params["model_lower_bound"] == expected


def test_what_nobody_reads_may_be_dropped() -> None:
    """A tensor without readers does not have to stay: the bound must not count it."""
    tensors = [
        {"name": name, "size": 10 if name == "stat" else 1, "role": role}
        for name, role in (
            ("x", "input"),
            ("stat", "activation"),
            ("y", "activation"),
            ("z", "activation"),
            ("d", "gradient"),
        )
    ]

    def op(name: str, phase: str, reads: list[str], writes: list[str]) -> dict[str, object]:
        choice = {"alg": "default", "time": 1.0, "workspace": 5 if name == "f2" else 0}
        return {"name": name, "phase": phase, "reads": reads, "writes": writes, "choices": [choice]}

    graph = ms.Graph(
        tensors,
        [op("f1", "fwd", ["x"], ["y", "stat"]), op("f2", "fwd", ["y"], ["z"]), op("b", "bwd", ["x", "z"], ["d"])],
    )
    steps = [{"run": "f1"}, {"free": "stat"}, {"run": "f2"}, {"free": "y"}, {"run": "b"}]
    schedule = ms.Schedule(steps, budget=14, graph="graph")
    device = ms.Device(14, 1.0)
    assert ms.bounds(graph, device=device).best <= ms.simulate(graph, schedule, device).makespan == 3.0
