"""Sizes, times and bandwidths as large and as small as there are: refused in a sentence, or bounded truly."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched import _core
from memsched.errors import InternalError
from memsched.planners import sets
from memsched.planners.registry import PLANNERS, planners_of
from memsched.planners.sets import plans_of
from memsched.problems import bounds
from memsched.problems.bounds import certified
from memsched.problems.budget import parse_memory
from memsched.study.auto import _bounded
from memsched.support.units import parse_bytes
from test_tiny_graphs import tiny_graph

pytestmark = pytest.mark.filterwarnings("ignore:the device's link is")  # so slow that its unit seems to be missing
MOST = 2**53
CHAIN = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])


def chain_of(field: str, value: Any) -> ms.Chain:
    columns: dict[str, Any] = {"activation": [0, 0], "gradient": [0, 0]}
    return ms.Chain([1], [1], **{**columns, field: value})


def graph_of(size: int = 0, workspace: int = 0, resident: int = 0, **more: int) -> ms.Graph:
    tensors = [{"name": "x", "size": size, "role": "activation"}]
    choice = {"alg": "default", "time": 1.0, "workspace": workspace}
    op = {"name": "f", "phase": "fwd", "reads": [], "writes": ["x"], "choices": [choice], **more}
    return ms.Graph(tensors, [op], resident=resident)


WAYS_IN: dict[str, Callable[[int], object]] = {
    "activation[0]": lambda n: chain_of("activation", [n, 0]),
    "activation[1]": lambda n: chain_of("activation", np.array([0, n])),
    "gradient[0]": lambda n: chain_of("gradient", np.array([n, 0], dtype=np.uint64)),
    "saved[0]": lambda n: chain_of("saved", [n]),
    "forward_overhead[0]": lambda n: chain_of("forward_overhead", [n]),
    "backward_overhead[0]": lambda n: chain_of("backward_overhead", [n]),
    "transient_overhead[0]": lambda n: chain_of("transient_overhead", [n]),
    "resident": lambda n: chain_of("resident", n),
    "tensors[0]: size": lambda n: graph_of(size=n),
    "workspace": lambda n: graph_of(workspace=n),
    "skip_workspace": lambda n: graph_of(skip_workspace=n),
    "memory": lambda n: ms.Device(n),
    "host_memory": lambda n: ms.Device(1, host_memory=n),
    "budget": lambda n: ms.Schedule([], budget=n),
    "chunk": lambda n: ms.to_graph(CHAIN, chunk=n),
    "M": lambda n: ms.greedy(CHAIN, n, 1.0),
    "workspace_limit": lambda n: ms.pooch(CHAIN, 100, 1.0, workspace_limit=n),
    "size": lambda n: ms.Buffer(0, 1, n),
    str(MOST + 1): lambda n: parse_bytes(str(n)),
    f"{MOST + 1}": lambda n: parse_memory(n, CHAIN),
}


@pytest.mark.parametrize("field", WAYS_IN)
def test_a_count_of_bytes_is_one_that_doubles_hold(field: str) -> None:
    WAYS_IN[field](MOST // 4)  # a chain counts some sizes twice
    for count in (MOST + 1, 2**62, 2**63 - 1):
        with pytest.raises(ms.InvalidInputError, match=r"2\^53") as caught:
            WAYS_IN[field](count)
        assert field in str(caught.value) or str(count) in str(caught.value)


def test_in_documents_as_well() -> None:
    for problem, path in ((CHAIN, ("activation", 0)), (ms.to_graph(CHAIN), ("tensors", 0, "size"))):
        document = json.loads(json.dumps(problem.to_json()))
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = MOST + 1
        with pytest.raises(ms.InvalidInputError, match=r"2\^53"):
            type(problem).from_json(json.dumps(document))


def test_the_sizes_of_a_problem_add_up_to_as_much_at_most() -> None:
    chain_of("gradient", [MOST // 2, MOST // 2])
    assert ms.bounds(graph_of(size=MOST), MOST, 1.0).best == 1.0
    for way in ("memory", "host_memory", "budget", "chunk", "M", "workspace_limit", "size"):
        WAYS_IN[way](MOST)
    for refused in (
        lambda: chain_of("activation", [MOST // 2, MOST // 2 + 1]),
        lambda: graph_of(size=MOST, workspace=1),
        lambda: graph_of(size=MOST, resident=1),
    ):
        with pytest.raises(ms.InvalidInputError, match=r"add up to more than 2\^53 bytes"):
            refused()


def test_counts_that_are_no_bytes_may_be_larger() -> None:
    assert ms.Schedule([], budget=1, rounds=[[MOST + 1, MOST + 1]]).rounds == ((MOST + 1, MOST + 1),)
    timeline = ms.greedy(CHAIN, 100, 1.0).timeline.to_json()
    assert ms.Timeline.from_json({**timeline, "bytes_out": MOST + 1}).bytes_out == MOST + 1


def seconds(rng: random.Random, kind: int) -> float:
    if kind == 0:
        return rng.choice([0.0, 1.0, 2.0, 3.5])
    if kind == 1:
        return 10.0 ** rng.uniform(-320, 300)
    return rng.choice([0.0, 5e-324, 1e-308, 1e-300, 1e-12, 1 / 3, 1e12, 1e290])


def size(rng: random.Random, kind: int, most: int) -> int:
    if kind == 0:
        return rng.randint(0, 9)
    return int(2 ** rng.uniform(0, most.bit_length() - 1)) if kind == 1 else rng.choice([0, 1, 7, most - 1, most])


def extreme_chain(rng: random.Random) -> ms.Chain:
    n, times, sizes = rng.randint(1, 5), rng.randrange(3), rng.randrange(3)

    def some(count: int) -> list[int]:
        return [size(rng, sizes, MOST // (8 * n + 8)) for _ in range(count)]

    activation = some(n + 1)
    saved = [output + rng.randint(0, 1) * more for output, more in zip(activation[1:], some(n), strict=True)]
    columns = ([seconds(rng, times) for _ in range(n)] for _ in range(2))
    overheads = {"forward_overhead": some(n), "backward_overhead": some(n)} if rng.random() < 0.5 else {}
    return ms.Chain(*columns, activation, some(n + 1), saved=saved, **overheads)


def extreme_graph(rng: random.Random) -> ms.Graph:
    document, times, sizes = tiny_graph(rng).to_json(), rng.randrange(3), rng.randrange(3)
    for tensor in document["tensors"]:
        tensor["size"] = size(rng, sizes, MOST // 40)
    for op in document["ops"]:
        for choice in op["choices"]:
            choice |= {"time": seconds(rng, times), "workspace": size(rng, sizes, MOST // 40)}
    return ms.Graph.from_json(document)


def extreme_device(rng: random.Random, problem: ms.Chain | ms.Graph) -> ms.Device:
    least, peak = ms.min_memory(problem), ms.peak_memory(problem)
    known = [0.0, inf, 5e-324, 1e-308, 1e-300, 0.1, 1.0, 1e9, 1e17, 1e300, 1.7e308]
    speeds = [rng.choice(known) if rng.random() < 0.5 else 10.0 ** rng.uniform(-300, 300) for _ in range(2)]
    return ms.Device(
        max(1, rng.choice([least, least + 1, (least + peak) // 2, peak])),
        d2h=speeds[0],
        h2d=rng.choice(speeds),
        duplex=rng.random() < 0.5,
        latency=rng.choice([0.0, 0.0, 1e-300, 1e-6, 1.0, 1e300]),
        host_memory=rng.choice([None, None, least]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [80, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_no_planner_beats_its_bound_whatever_the_magnitudes(count: int) -> None:
    """The validator judges; a bound above a makespan would be an InternalError."""
    rng = random.Random(count)
    planned = 0
    for _ in range(count):
        problem = (extreme_chain if rng.random() < 0.6 else extreme_graph)(rng)
        device = extreme_device(rng, problem)
        for name in planners_of(problem):
            if name == "olla":  # seconds each
                continue
            options = {"time_limit": 0.0} if name == "offload" else {"slots": 50} if name == "pofo" else {}
            try:
                found = PLANNERS[name].plan(problem, device=device, **options)
            except ms.InfeasibleError:
                continue
            report = ms.validate(found)
            assert found.lower_bound <= report.makespan * (1 + 1e-9)
            assert report.makespan == pytest.approx(found.makespan, rel=1e-9)
            planned += 1
    assert planned > 3 * count


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.exhaustive)])
def test_bounds_are_numbers_whatever_the_magnitudes(count: int) -> None:
    rng = random.Random(-count)
    for _ in range(count):
        problem = (extreme_chain if rng.random() < 0.6 else extreme_graph)(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "(the latency of )?the device's link is")
            found = ms.bounds(problem, device=extreme_device(rng, problem), time_limit=0.0)
        assert 0 <= found.compute <= min(found.fractional, found.recompute) * (1 + 1e-9)
        assert 0 <= found.transfer <= found.best * (1 + 1e-9)


def test_a_bound_above_its_makespan_is_a_fault() -> None:
    assert certified(3.0, 3.0) == certified(3.0 * (1 + 1e-12), 3.0) == 3.0
    for wrong in (3.0 * (1 + 1e-8), inf, float("nan")):
        with pytest.raises(InternalError, match="above the makespan"):
            certified(wrong, 3.0)


class FalsePlans:
    """What plans of a chain share, with bounds that are too high."""

    def __init__(self, plans: _core.ChainPlans) -> None:
        self.plans = plans

    def choose(self, *arguments: Any) -> Any:
        return self.plans.choose(*arguments)

    def plan(self, *arguments: Any) -> Any:
        return (*self.plans.plan(*arguments)[:2], 1e9)


@pytest.mark.parametrize("planner", ["greedy", "vdnn", "rotor"])
def test_no_planner_returns_a_false_proof(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "graph_bounds", lambda *_: (1e9, 1e9, 1e9))
    monkeypatch.setattr(bounds, "recompute_bound", lambda *_: 1e9)
    monkeypatch.setattr(sets, "plans_of", lambda *arguments: FalsePlans(plans_of(*arguments)))
    for call in (ms.plan, ms.compare):
        options: dict[str, Any] = {"planner": planner} if call is ms.plan else {"planners": [planner]}
        with pytest.raises(InternalError, match="report it"):
            call(CHAIN, M=20, beta=8, **options)


def test_auto_returns_no_false_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ms.plan(CHAIN, M=20, beta=8)
    monkeypatch.setattr(bounds, "recompute_bound", lambda *_: 2 * found.makespan)
    with pytest.raises(InternalError, match="report it"):
        _bounded(found, 0.0)


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**-160, 2.0**160, 2.0**900])
@pytest.mark.parametrize("planner", ["rotor", "pofo"])
def test_plans_do_not_depend_on_the_unit_of_time(planner: str, unit: float) -> None:
    """Tables of floats took 2^130 seconds for no plan, and 2^-150 for none at all: plans were slow, estimates false."""
    rng = random.Random(7)
    for _ in range(20):
        n = rng.randint(2, 7)
        forward, backward = ([float(rng.randint(0, 5)) for _ in range(n)] for _ in range(2))
        sizes = [[rng.randint(0, 6) for _ in range(n + 1)] for _ in range(2)]
        saved = [size + rng.randint(0, 6) for size in sizes[0][1:]]
        chain = ms.Chain(forward, backward, *sizes, saved=saved)
        scaled = ms.Chain([t * unit for t in forward], [t * unit for t in backward], *sizes, saved=saved)
        least = ms.min_memory(chain, "rotor")
        memory = rng.randint(least, max(least, ms.peak_memory(chain)))
        one = PLANNERS[planner].plan(chain, M=memory, beta=2.0, slots=30)
        other = PLANNERS[planner].plan(scaled, M=memory, beta=2.0 / unit, slots=30)
        assert other.schedule == one.schedule
        assert other.makespan == one.makespan * unit
        assert other.estimate == (None if one.estimate is None else one.estimate * unit)


def test_an_estimate_of_pofo_is_finite_or_there_is_none() -> None:
    """Rounded up to slots, what travels took longer than the largest double; the result could not be read back."""
    chain = ms.Chain([1, 1, 1, 1], [1] * 4, [10**9, *[1000] * 4], [10**9] * 5, saved=[10**10, 1000, 10**10, 1000])
    device = ms.Device(1, d2h=1.0, h2d=1e-300, duplex=True)
    low, high = ms.min_memory(chain, "pofo"), ms.peak_memory(chain)
    for memory in range(low, high, (high - low) // 40):
        for slots in (3, 7, 30):
            try:
                result = ms.pofo(chain, memory, device=device, labels="exact", slots=slots)
            except ms.InfeasibleError:
                continue
            assert result.estimate is None or result.estimate < inf
            ms.Result.from_json(result.to_json())


def test_a_sweep_keeps_a_plan_whose_gap_is_beyond_the_largest_double() -> None:
    """The gap was infinite, and the sweep called its own store damaged and gave none of its rows."""
    chain = ms.Chain([1e-300] * 4, [1e-300] * 4, [1, 5, 4, 3, 5], [2, 1, 5, 6, 3], saved=[6, 6, 4, 6])
    (row,) = ms.sweep(chain, ["pooch"], memory=[20], beta=[1e-20])
    assert row["makespan"] / row["lower_bound"] == inf
    assert row["gap"] == np.finfo(float).max
    assert not row["optimal"]


def test_bounds_of_the_smallest_doubles_refuse_no_plan() -> None:
    unit = 5e-324
    forward, backward = ([times * unit for times in column] for column in ((4, 3, 0, 2), (3, 0, 1, 2)))
    chain = ms.Chain(forward, backward, [5, 5, 5, 0, 4], [0, 6, 2, 4, 5])
    result = ms.selective(chain, 23, 0, moves=0)
    assert ms.validate(result).lower_bound <= result.makespan == 18 * unit


@pytest.mark.parametrize(
    ("planner", "seconds", "size"), [("rotor", 1, 2**53 // 13), ("rotor", 9e300, 4), ("pofo", 1, 2**53 // 13)]
)
def test_runs_that_together_exceed_what_a_graph_may_have(planner: str, seconds: float, size: int) -> None:
    """They were refused as bad input, with the name of a tensor that the chain does not have."""
    chain = ms.Chain([seconds] * 5, [seconds] * 5, [size] * 6, [0] * 6)
    with pytest.raises(ms.LimitError, match="all runs together"):
        getattr(ms, planner)(chain, 3 * size, 0)


@pytest.mark.filterwarnings("ignore:the")
@pytest.mark.parametrize("planner", ["greedy", "dynprog", "vdnn", "autoswap", "offload"])
def test_a_latency_that_no_copy_survives_is_no_link(planner: str) -> None:
    """A schedule was made that takes for ever, and ended in an error about schedules."""
    chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4])
    device = ms.Device(20, 8.0, latency=1e308)
    with pytest.raises(ms.InfeasibleError, match="everything must stay; it needs at least"):
        ms.plan(chain, device=device, planner=planner)
