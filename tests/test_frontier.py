"""The curve of one planner, from one table where it has one; and auto, which looks at all planners."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS, GRAPH_PLANNERS
from memsched.planners.registry import PLANNERS
from memsched.testing import chains

RESNET = ms.profiles.load("resnet50-224-b32")
CHAIN = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [0, 4, 4, 4], saved=[6, 7, 4])


@pytest.mark.parametrize("planner", CHAIN_PLANNERS)
def test_every_planner_has_a_curve(planner: str) -> None:
    curve = ms.frontier(CHAIN, 2.0, planner=planner, points=5, time_limit=0.0)
    assert len(curve.results) == len(curve.memory) == len(curve.makespan) <= 5
    assert (np.diff(curve.memory) > 0).all()
    assert curve.memory[0] == ms.min_memory(CHAIN, planner)
    assert curve.memory[-1] == ms.peak_memory(CHAIN)
    assert curve.ideal == curve.makespan[-1] == 6
    for memory, result in zip(curve.memory, curve.results, strict=True):
        if result is not None:
            assert result.planner == planner
            assert ms.validate(result).peak_memory <= memory
    found = np.isfinite(curve.makespan)
    assert (curve.lower_bound[found] <= curve.makespan[found]).all()
    assert (curve.peak_memory[found] <= curve.memory[found]).all()


@pytest.mark.parametrize("planner", GRAPH_PLANNERS)
@pytest.mark.parametrize("problem", [ms.to_graph(CHAIN), ms.profiles.analytic("alexnet", 4)], ids=["graph", "family"])
def test_every_planner_of_graphs_has_a_curve(planner: str, problem: ms.Graph | ms.GraphFamily) -> None:
    link = 2.0 if isinstance(problem, ms.Graph) else 12e9
    curve = ms.frontier(problem, link, planner=planner, points=5, time_limit=0.05)
    assert (np.diff(curve.memory) > 0).all()
    assert curve.memory[0] == ms.min_memory(problem, planner)
    assert curve.memory[-1] == ms.peak_memory(problem)
    assert (curve.makespan[1:] <= curve.makespan[:-1]).all()
    assert curve.ideal <= curve.makespan[-1] < np.inf
    for memory, result in zip(curve.memory, curve.results, strict=True):
        if result is not None:
            assert ms.validate(result).peak_memory <= memory
            assert result.lower_bound <= result.makespan


def test_the_curve_of_a_graph_is_that_of_selective_if_none_is_named() -> None:
    graph = ms.to_graph(CHAIN)
    curve = ms.frontier(graph, 2.0, points=3)
    assert curve.planner == "selective"
    assert curve.makespan.tolist() == ms.frontier(graph, 2.0, planner="selective", points=3).makespan.tolist()
    assert ms.frontier(CHAIN, 2.0, points=3).planner == "pofo"


@pytest.mark.parametrize("planner", ["rotor", "pofo"])
def test_one_table_serves_all_memories(planner: str) -> None:
    """Sizes are rounded to slots of the largest memory, so a point is close to what a table of its own finds."""
    curve = ms.frontier(RESNET, 12.2e9, planner=planner, points=6)
    assert np.isfinite(curve.makespan).all()
    for memory, result in zip(curve.memory, curve.results, strict=True):
        own = PLANNERS[planner].plan(RESNET, int(memory), 12.2e9)
        assert result is not None
        assert result.makespan <= own.makespan * 1.06
        assert ms.validate(result).peak_memory <= memory
    assert (np.diff(curve.makespan) <= curve.makespan[:-1] * 0.005).all()


@given(chains(max_stages=5), st.sampled_from(["rotor", "pofo"]), st.integers(1, 300))
def test_slots_of_a_byte_round_nothing(chain: ms.Chain, planner: str, points: int) -> None:
    low, high = max(1, ms.min_memory(chain, planner)), ms.peak_memory(chain)
    if high <= low:
        return
    curve = ms.frontier(chain, 2.0, planner=planner, points=min(points, 5), slots=high)
    for memory, result in zip(curve.memory, curve.results, strict=True):
        assert result is not None
        if planner == "rotor":
            assert result.makespan == ms.rotor(chain, int(memory), slots=high).makespan


@given(chains(max_stages=5), st.sampled_from(CHAIN_PLANNERS), st.sampled_from([0.0, 0.3, 1.0, 2.5, float("inf")]))
def test_more_memory_never_gives_a_slower_plan(chain: ms.Chain, planner: str, beta: float) -> None:
    low, high = max(1, ms.min_memory(chain)), ms.peak_memory(chain)
    memory = [int(one) for one in np.linspace(low, max(low, high), 12)]
    curve = ms.frontier(chain, beta, planner=planner, memory=memory, time_limit=0.0)
    assert (curve.makespan[1:] <= curve.makespan[:-1]).all()
    for result, bytes_ in zip(curve.results, curve.memory.tolist(), strict=True):
        if result is not None:
            assert result.device.memory == result.schedule.budget == bytes_
            assert ms.validate(result).peak_memory <= bytes_
            assert result.params.get("planned_for", {"memory": bytes_})["memory"] <= bytes_


def test_a_point_may_have_the_plan_for_less_memory() -> None:
    chain, memory = ms.profiles.load("resnet34-224-b32"), [728_907_530, 749_233_760]
    own = [ms.dynprog(chain, bytes_, 12.2e9).makespan for bytes_ in memory]
    assert own[1] > own[0]
    curve = ms.frontier(chain, 12.2e9, planner="dynprog", memory=memory)
    assert curve.makespan[1] <= curve.makespan[0] == own[0]
    assert [result and result.params.get("planned_for", {}).get("memory") for result in curve.results] == [
        None,
        memory[0],
    ]


@given(chains(max_stages=4), st.sampled_from([0.25, 0.5, 1.0, 4.0]), st.sampled_from([0.25, 1.0, 4.0]))
def test_the_curve_of_tflms_begins_where_its_single_call_does(chain: ms.Chain, beta: float, profiled: float) -> None:
    """Its least memory depends on the link: on that of the call, whatever the profile was measured with."""
    chain = ms.Chain.from_json({**chain.to_json(), "provenance": {"link_bandwidth": profiled}})
    curve = ms.frontier(chain, beta, planner="tflms", points=4)
    assert curve.results[0] is not None
    least = int(curve.memory[0])
    assert ms.tflms(chain, least, beta).makespan == curve.makespan[0]
    if least > max(1, ms.min_memory(chain)):
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.tflms(chain, least - 1, beta)
        assert caught.value.min_memory == least


def test_memories_of_ones_own() -> None:
    curve = ms.frontier(RESNET, 12.2e9, planner="greedy", memory=[3e9, 1e6, 2e9, 3e9])
    assert curve.memory.tolist() == [1_000_000, 2_000_000_000, 3_000_000_000]
    assert curve.results[0] is None
    assert np.isinf(curve.makespan[0])
    assert np.isnan(curve.lower_bound[0])
    assert curve.peak_memory[0] == 0


def test_progress_tells_every_point() -> None:
    told: list[float] = []
    ms.frontier(CHAIN, 2.0, planner="greedy", points=4, progress=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"planner": "best"}, "planner is 'best'"),
        ({"points": 0}, "points"),
        ({"memory": []}, "memory is"),
        ({"memory": "40%"}, "memory is '40%'"),
        ({"memory": [1e9, -1]}, r"memory\[1\]"),
        ({"slots": 0}, "slots"),
        ({"threads": 1.5}, "threads"),
        ({"beta": -1}, "beta"),
        ({"slots": 0, "time_limit": 0.01}, "slots is 0"),
        ({"threads": -9, "time_limit": 0.01}, "threads is -9"),
        ({"threads": -9, "planner": "greedy"}, "threads is -9"),
        ({"slots": 7, "time_limit": 0.01}, "slots is 7, of a table .*; leave slots or time_limit out"),
        ({"slots": 7, "planner": "greedy"}, "slots is 7, .* greedy has no table; leave slots out"),
        ({"memory": [0.4]}, r'memory\[0\] is 0.4, less than a byte; did you mean "40%"\?'),
    ],
)
def test_bad_input(options: dict[str, object], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.frontier(RESNET, **{"beta": 1e9, **options})  # type: ignore[arg-type]
    with pytest.raises(ms.InvalidInputError, match="problem is a Graph; rotor plans a Chain"):
        ms.frontier(ms.to_graph(RESNET), 1e9, planner="rotor")
    with pytest.raises(ms.InvalidInputError, match="a graph is not cut"):
        ms.frontier(ms.to_graph(RESNET), 1e9, chunk=4096)
    for planner in (ms.vdnn, ms.tflms, ms.autoswap, ms.selective):
        with pytest.raises(ms.InvalidInputError, match="chunk is 2, but a graph is not cut; leave it out"):
            planner(ms.to_graph(RESNET), "50%", 1e9, chunk=2)
    with pytest.raises(ms.InvalidInputError, match="problem is a str"):
        ms.frontier("resnet", 1e9)  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=30)
@given(
    chains(max_stages=6), st.floats(0, 1), st.sampled_from([0.0, 0.5, 2.0, float("inf")]), st.sampled_from([None, 3])
)
def test_auto_is_never_worse(chain: ms.Chain, share: float, beta: float, chunk: int | None) -> None:
    low, high = max(1, ms.min_memory(chain, "pofo" if beta else "rotor")), ms.peak_memory(chain)
    memory = int(low + share * max(0, high - low))
    best = ms.plan(chain, memory, beta, chunk=chunk, time_limit=0.0)
    for found in ms.compare(chain, memory, beta, chunk=chunk, time_limit=0.0).values():
        if isinstance(found, ms.Result):
            assert best.makespan <= found.makespan * (1 + 1e-9)
    cut = ms.to_graph(chain, chunk)  # the bound counts the pieces that move
    assert best.lower_bound == pytest.approx(min(best.makespan, ms.bounds(cut, memory, beta, recompute=True).recompute))
    assert best.optimal == (best.makespan <= best.lower_bound * (1 + 1e-12))
    ms.validate(best)


@pytest.mark.slow
def test_auto_gives_each_planner_its_default_moves() -> None:
    """On this device more moves than its default lead `selective` elsewhere, to a slower plan."""
    chain = ms.profiles.load("inception_v3-1000-b8")
    memory, beta = ms.min_memory(chain, "pofo"), 12.2e9
    best = ms.plan(chain, memory, beta)
    for name in ("selective", "pofo"):
        found = ms.plan(chain, memory, beta, planner=name)
        assert best.makespan <= found.makespan * (1 + 1e-9), name


def test_auto_recomputes_where_that_is_better_and_offloads_where_that_is() -> None:
    """Three forwards of a second and 4 bytes: running one again beats a slow link, and loses to a fast one."""
    slow, fast = (ms.plan(CHAIN, 22, beta) for beta in (0.25, 100.0))
    assert slow.recomputed
    assert fast.recomputed == ()
    assert fast.offloaded
    assert slow.makespan > fast.makespan


def test_a_time_limit_for_each_point_is_no_worse_than_one_for_a_single_plan() -> None:
    """The shared table of all points took longer than that, and the last resort was shown as the plan."""
    chain = ms.profiles.load("resnet101-224-b32")
    found = ms.frontier(chain, "12.2GB/s", planner="pofo", points=3, time_limit=0.2)
    single = ms.pofo(chain, int(found.memory[0]), 12.2e9, time_limit=0.05)
    assert found.makespan[0] <= 1.05 * single.makespan


@pytest.mark.parametrize("problem", [CHAIN, ms.to_graph(CHAIN)], ids=["chain", "graph"])
def test_auto_has_a_curve_and_a_row(problem: ms.Chain | ms.Graph) -> None:
    curve = ms.frontier(problem, 2.0, planner="auto", points=4, time_limit=0)
    assert curve.planner == "auto"
    for memory, result in zip(curve.memory.tolist(), curve.results, strict=True):
        alone = ms.plan(problem, memory, 2.0, time_limit=0)
        assert result is not None
        assert result.makespan == alone.makespan
        row = ms.compare(problem, memory, 2.0, planners="auto,selective", time_limit=0)["auto"]
        assert isinstance(row, ms.Result)
        assert row.makespan == alone.makespan
    with pytest.raises(ms.InvalidInputError, match="auto has no table"):
        ms.frontier(problem, 2.0, planner="auto", slots=5)
