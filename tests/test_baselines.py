"""The planners that others are compared with: vdnn, tflms and autoswap."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import _core
from memsched.planners.chain.autoswap import STARTS, candidates_of, remove, select
from memsched.planners.chain.bayes import expected_improvement, minimise, posterior
from memsched.planners.sets import begin_chain, begin_sets
from memsched.testing import chains, devices
from oracles import autoswap_scores

Planner = Callable[..., ms.Result]

# F_1 .. B_1 take 1, 4, 1, 1, 1, 1 s. Everything needs 16 bytes while F_3 and B_3 run.
HAND = ms.Chain([1, 4, 1], [1, 1, 1], [4, 4, 4, 4], [0, 0, 0, 0])


@st.composite
def tight(draw: st.DrawFn, max_stages: int = 6) -> tuple[ms.Chain, ms.Device]:
    """A chain, and a device with a link and a memory from the least to a little over the peak."""
    chain = draw(chains(max_stages=max_stages, min_bytes=1))
    memory = draw(st.integers(ms.min_memory(chain), ms.peak_memory(chain) + 1))
    return chain, draw(devices(memory=max(1, memory)))


def draw_chunk(data: st.DataObject, chain: ms.Chain) -> int | str | None:
    return data.draw(st.sampled_from([None, 2, "storage" if chain.pieces is not None else 3]))


def tflms_outcome(chain: ms.Chain, device: ms.Device, chunk: int | str | None) -> ms.Result | ms.InfeasibleError:
    try:
        return ms.tflms(chain, device=device, chunk=chunk)
    except ms.InfeasibleError as error:
        return error


def test_vdnn_by_hand() -> None:
    """Ratios 1/4, 1, 1/4. x_1 leaves alone; greedy's x_0, which no threshold separates, would do better.

    x_1 leaves in [1, 3], is freed when F_2 ends, returns in [7, 9] after B_3 has freed x_3; B_2, B_1 end at
    10, 11. x_0 would leave in [0, 2] and return in [7, 9] in the shadow of B_2; B_1 would end at 10.
    """
    result = ms.vdnn(HAND, M=12, beta=2)
    assert result.offloaded == ("a1",)
    assert result.makespan == 11
    assert (result.params["threshold"], result.params["every_other"]) == (1.0, False)
    assert ms.greedy(HAND, M=12, beta=2).makespan == 10


def test_tflms_by_hand() -> None:
    """Looking one stage ahead fetches x_0 with B_2; two stages ahead, next to B_3, there is no room.

    At 1/2 byte a second x_0 leaves in [0, 8] and F_3 would wait from 5 to 8.
    """
    result = ms.tflms(HAND, M=12, beta=2)
    assert result.makespan == 10
    assert (result.params["tensors"], result.params["lookahead"]) == (1, 1)
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.tflms(HAND, M=12, beta=0.5)
    assert caught.value.min_memory == 16


@given(tight())
def test_tflms_is_the_best_of_all_lookaheads(case: tuple[ms.Chain, ms.Device]) -> None:
    """Each prefix with each lookahead, simulated by itself; a forward that waits rules it out."""
    chain, device = case
    call = begin_chain(ms.tflms, chain, None, None, device, least=False)
    makespans = []
    for count, ahead in itertools.product(range(chain.n + 1), range(1, chain.n + 1)):
        flags = np.array([k < count for k in range(chain.n)], dtype=np.uint8)
        with contextlib.suppress(ms.InfeasibleError, ms.ScheduleError):
            schedule = call.schedule(call.tensors(flags), {"name": "tflms"}, ahead)
            found = ms.simulate(chain, schedule, device)
            ends = [found.end[k] for k, step in enumerate(schedule.steps) if step.get("run", "").startswith("F")]
            if np.allclose(ends, np.cumsum(chain.forward_time)):
                makespans.append(found.makespan)
    outcome = tflms_outcome(chain, device, None)
    if isinstance(outcome, ms.InfeasibleError):
        assert not makespans
    else:
        assert outcome.makespan == pytest.approx(min(makespans))


def test_autoswap_by_hand() -> None:
    """The area of absence sees that x_0 is too small to help; the three others take it first.

    F_1 .. F_3 end at 1, 2, 6 and B_3 .. B_1 at 7, 7, 8. Absences [1, 7], [2, 7], [6, 6], two transfers of
    0.5, 2, 2 s in all: DOA 5.5, 3, -2, AOA 5.5, 12, -0.5. The load exceeds M = 9 by 4 during F_3, B_3: WDOA
    and, before any choice, SWDOA 20, 20, 0. Then x_1 alone suffices, x_0 does not.
    x_1 returns in [7, 8] and B_1 ends at 9; with x_0 behind it, at 9.25.
    """
    chain = ms.Chain([1, 1, 4], [1, 0, 1], [1, 4, 4, 4], [0, 0, 0, 0])
    candidates = candidates_of(begin_chain(ms.autoswap, chain, 9, 4, None))
    assert [select(candidates, weights).tolist() for weights in STARTS[:4]] == [
        [1, 1, 0],
        [0, 1, 0],
        [1, 1, 0],
        [1, 1, 0],
    ]
    result = ms.autoswap(chain, M=9, beta=4)
    assert result.makespan == 9
    assert result.offloaded == ("a1",)
    assert result.params["weights"] == [0, 1, 0, 0]
    assert ms.autoswap(chain, M=9, beta=4, evaluations=1).makespan == 9.25


@settings(max_examples=max(15, settings().max_examples // 5))
@given(tight(), st.data())
@pytest.mark.parametrize("planner", [ms.vdnn, ms.autoswap])
def test_plans_are_legal_wherever_one_exists(
    planner: Planner, case: tuple[ms.Chain, ms.Device], data: st.DataObject
) -> None:
    chain, device = case
    result = planner(chain, device=device, chunk=draw_chunk(data, chain))
    check_legal(result)
    if device.memory >= ms.peak_memory(chain):
        assert result.offloaded == ()
        assert result.optimal


def check_legal(result: ms.Result) -> None:
    report = ms.validate(result)
    assert report.makespan == pytest.approx(result.makespan)
    assert result.peak_memory <= result.device.memory
    assert result.lower_bound <= result.makespan


@settings(max_examples=30, deadline=None)
@given(tight())
@pytest.mark.parametrize("planner", [ms.vdnn, ms.autoswap])
def test_below_the_least_memory_there_is_none(planner: Planner, case: tuple[ms.Chain, ms.Device]) -> None:
    chain, device = case
    least = ms.min_memory(chain)
    assume(least > 1)
    with pytest.raises(ms.InfeasibleError) as caught:
        planner(chain, least - 1, device=device)
    assert caught.value.min_memory == least


@settings(max_examples=max(15, settings().max_examples // 5))
@given(tight())
def test_vdnn_is_the_best_of_its_sets(case: tuple[ms.Chain, ms.Device]) -> None:
    chain, device = case
    graph = ms.to_graph(chain)
    x = [int(chain.activation[0]), *(int(v) for v in chain.saved)]
    ratio = [float(chain.forward_time[k]) / x[k] for k in range(chain.n)]
    sets: list[list[int]] = [[]]
    for threshold in ratio:
        reached = [k for k in range(chain.n) if ratio[k] >= threshold]
        sets += [reached, reached[::2]]
    best = math.inf
    for stages in sets:
        names = {f"{kind}{k}" for k in stages for kind in ("a", "tape")}
        flags = np.array([tensor["name"] in names for tensor in graph.tensors], np.uint8)
        try:
            schedule = _core.offload_set_schedule(graph, device.memory, flags, {"name": "vdnn"}, None, None)
        except ms.InfeasibleError:
            continue
        best = min(best, ms.simulate(chain, schedule, device).makespan)
    assert ms.vdnn(chain, device=device).makespan == pytest.approx(best)


@settings(max_examples=max(15, settings().max_examples // 5))
@given(tight(), st.data())
def test_tflms_never_waits_in_forward(case: tuple[ms.Chain, ms.Device], data: st.DataObject) -> None:
    chain, device = case
    result = tflms_outcome(chain, device, draw_chunk(data, chain))
    if isinstance(result, ms.InfeasibleError):
        assert device.memory < ms.peak_memory(chain)
        return
    check_legal(result)
    runs = [i for i, step in enumerate(result.schedule.steps) if step.get("run", "").startswith("F")]
    assert [result.schedule.steps[i]["run"] for i in runs] == [f"F{k}" for k in range(1, chain.n + 1)]
    ends = np.cumsum(chain.forward_time)
    assert [result.timeline.end[i] for i in runs] == pytest.approx(ends.tolist())


@settings(max_examples=max(15, settings().max_examples // 5))
@given(tight(max_stages=4))
def test_tflms_names_its_least_memory(case: tuple[ms.Chain, ms.Device]) -> None:
    chain, device = case
    outcome = tflms_outcome(chain, device, None)
    assume(isinstance(outcome, ms.InfeasibleError))
    least = outcome.min_memory
    assert ms.tflms(chain, least, device=device).peak_memory <= least
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.tflms(chain, least - 1, device=device)
    assert caught.value.min_memory == least


SCORES = [*np.eye(4).tolist(), None]


@settings(max_examples=max(10, settings().max_examples // 5))
@given(st.data())
@pytest.mark.parametrize("weights", SCORES, ids=["doa", "aoa", "wdoa", "swdoa", "mixed"])
def test_autoswap_selects_by_its_scores(weights: list[float] | None, data: st.DataObject) -> None:
    chain = data.draw(chains(max_stages=5))
    rate = st.sampled_from([0.5, 1.0, 2.0, 4.0, math.inf])  # exact in binary: ties stay ties
    device = ms.Device(
        data.draw(st.integers(max(1, ms.min_memory(chain)), max(1, ms.peak_memory(chain)))),
        d2h=data.draw(rate),
        h2d=data.draw(rate),
        latency=data.draw(st.sampled_from([0.0, 1.0])),
    )
    mixed = weights is None
    if weights is None:
        weights = data.draw(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
    task = begin_chain(ms.autoswap, chain, None, None, device)
    candidates = candidates_of(task)
    graph = task.graph.to_json()
    assert (candidates.excess + device.memory).tolist() == autoswap_scores.load(graph)
    chosen, margin = autoswap_scores.select(graph, device, device.memory, weights)
    assume(not mixed or margin > 1e-9)
    assert np.flatnonzero(select(candidates, np.array(weights))).tolist() == sorted(chosen)


@settings(max_examples=max(10, settings().max_examples // 5))
@given(chains(max_stages=5))
def test_autoswap_knows_of_a_graph_what_is_held_without_a_tensor(chain: ms.Chain) -> None:
    graph = ms.to_graph(chain)
    task = begin_sets(ms.autoswap, graph, max(1, ms.peak_memory(graph)), 4, None, None, 0)
    candidates, document = candidates_of(task), graph.to_json()
    for k, tensor in enumerate(_core.movable_tensors(graph)):
        excess = candidates.excess.copy()
        remove(candidates, excess, k)
        held = autoswap_scores.load(document, [document["tensors"][tensor]["name"]])
        assert (excess + task.device.memory).tolist() == held


@settings(deadline=None)
@given(chain=chains(), share=st.floats(0, 1), weights=st.integers(0, 4))
def test_autoswap_takes_enough_when_its_time_is_over(chain: ms.Chain, share: float, weights: int) -> None:
    """The scores stay as they are after the first choice. The load fits, if it can; without the last it did not."""
    memory = ms.min_memory(chain) + int(share * (ms.peak_memory(chain) - ms.min_memory(chain)))
    candidates = candidates_of(begin_chain(ms.autoswap, chain, max(1, memory), 4, None))
    chosen = set(np.flatnonzero(select(candidates, STARTS[weights], until=-math.inf)).tolist())

    def fits(taken: set[int]) -> bool:
        excess = candidates.excess.copy()
        for k in taken:
            remove(candidates, excess, k)
        return bool(excess.max() <= 0)

    assert fits(chosen) or chosen == set(np.flatnonzero(candidates.size > 0).tolist())
    if len(chosen) > 1 and fits(chosen):
        assert any(not fits(chosen - {k}) for k in chosen)


@pytest.mark.parametrize("seed", [0, 7])
def test_autoswap_is_the_same_for_a_seed(seed: int) -> None:
    chain = ms.profiles.random(12, seed=3)
    memory = (ms.min_memory(chain) + ms.peak_memory(chain)) // 2
    first, second = (ms.autoswap(chain, memory, 3e8, seed=seed, evaluations=15) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.params == second.params
    assert sum(first.params["weights"]) == pytest.approx(1)


def test_autoswap_reports_and_checks() -> None:
    seen: list[float] = []
    chain = ms.profiles.random(12, seed=3)
    memory = (ms.min_memory(chain) + ms.peak_memory(chain)) // 2
    result = ms.autoswap(chain, memory, 3e8, evaluations=8, progress=seen.append)
    assert result.params["evaluations"] == len(seen) == 8
    assert result.makespan <= ms.autoswap(chain, memory, 3e8, evaluations=5).makespan
    for options in ({"evaluations": 0}, {"seed": -1}, {"evaluations": 2.5}):
        with pytest.raises(ms.InvalidInputError):
            ms.autoswap(chain, memory, 3e8, **options)


def test_autoswap_stops_at_the_bound() -> None:
    result = ms.autoswap(HAND, M=12, beta=math.inf)
    assert result.params["evaluations"] == 1
    assert result.optimal


def test_process_interpolates() -> None:
    points = np.array([[1.0, 0.0], [0.0, 1.0], [0.4, 0.6]])
    values = np.array([0.5, -1.0, 0.25])
    mean, deviation = posterior(points, values, np.vstack([points, [[9.0, 9.0]]]))
    assert mean.tolist() == pytest.approx([0.5, -1.0, 0.25, 0.0], abs=1e-4)
    assert deviation.tolist() == pytest.approx([0, 0, 0, 1], abs=2e-3)


@pytest.mark.parametrize(("mean", "deviation", "best"), [(0.0, 1.0, 0.0), (1.0, 0.5, 0.2), (-1.0, 2.0, 0.5)])
def test_expected_improvement_is_its_integral(mean: float, deviation: float, best: float) -> None:
    from scipy.integrate import quad  # takes a second

    def gain(y: float) -> float:
        return (best - y) * NormalDist(mean, deviation).pdf(y)

    expected = quad(gain, mean - 12 * deviation, best)[0]
    found = expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert found.tolist() == pytest.approx([expected])
    assert expected_improvement(np.array([2.0]), np.array([0.0]), 1.0).tolist() == [0.0]


def test_search_learns_and_survives_what_is_infeasible() -> None:
    def bowl(point: np.ndarray) -> float:
        return math.inf if point[0] > 0.8 else 1 + float(((point - [0.1, 0.2, 0.3, 0.4]) ** 2).sum())

    search = minimise(bowl, STARTS, evaluations=40, seed=1)
    assert len(search.values) == 40
    assert math.isinf(search.values[0])
    assert search.values[search.best] < 1.01 < min(search.values[:5])
    assert len(minimise(bowl, STARTS, evaluations=40, seed=1, target=1.8).values) < 6
    assert np.isinf(minimise(lambda _: math.inf, STARTS, evaluations=8, seed=1).values).all()
