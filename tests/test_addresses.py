"""Addresses for the plans of all planners, and orders with addresses."""

from __future__ import annotations

import json
import pickle
from functools import partial

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import memsched as ms
from listed import CHAIN_PLANNERS, GRAPH_PLANNERS
from memsched.planners.registry import PLANNERS
from memsched.testing import chains, devices, graphs
from oracles.olla_graphs import WORKED, random_graphs, with_kept
from oracles.orders import best_order
from oracles.placements import least_joint_height
from plans import graph as graph_json
from plans import op, tensor

BRIEF = 0.2  # seconds
FEW = settings(max_examples=max(10, settings().max_examples // 5))


def planned(planner: str, problem: ms.Chain | ms.Graph, share: float, device: ms.Device) -> ms.Result:
    """A plan at an amount of memory from the planner's least to a little above the peak."""
    least = max(1, ms.min_memory(problem, planner))
    memory = int(least + share * max(0, ms.peak_memory(problem) + 9 - least))
    for _ in range(9):
        try:
            return PLANNERS[planner].plan(problem, memory, device=device)
        except ms.InfeasibleError as error:
            assume(error.min_memory > memory)
            memory = error.min_memory
    raise AssertionError


def check_addresses(result: ms.Result, alignment: int) -> None:
    """By the validators, which know nothing of the code that places."""
    placement = ms.place(result, alignment=alignment, time_limit=BRIEF)
    assert ms.validate_placement(placement.buffers, placement.offsets) == placement.height
    assert placement.load <= placement.lower_bound <= placement.height
    if placement.optimal:  # where time ends the search, two of them may differ
        assert ms.place(result.timeline, alignment=alignment).offsets == placement.offsets
        assert ms.place(result, alignment=alignment) == placement
    sources = [buffer.offset is not None for buffer in placement.buffers]
    for offset, fixed in zip(placement.offsets, sources, strict=True):
        assert fixed or offset % alignment == 0
    try:
        addressed = ms.with_addresses(result, alignment=alignment, time_limit=BRIEF)
    except ms.InfeasibleError as infeasible:
        needed = infeasible.min_memory
        assert needed > result.schedule.budget
        assert placement.height + result.graph.resident > result.schedule.budget or not placement.optimal
        return
    assert addressed.schedule.memory == "contiguous"
    report = ms.validate(addressed)
    assert report.peak_memory == addressed.peak_memory <= result.schedule.budget
    assert addressed.placement is not None
    assert ms.validate_placement(addressed.placement.buffers, addressed.placement.offsets) <= (
        result.schedule.budget - result.graph.resident
    )
    assert ms.Result.from_json(json.dumps(addressed.to_json())) == addressed


@pytest.mark.slow
@pytest.mark.parametrize("planner", CHAIN_PLANNERS)
@FEW
@given(chain=chains(), share=st.floats(0, 1), device=devices(memory=1), alignment=st.sampled_from([1, 1, 2, 3]))
def test_plans_of_chains(planner: str, chain: ms.Chain, share: float, device: ms.Device, alignment: int) -> None:
    assume(min(device.d2h, device.h2d) > 0)
    check_addresses(planned(planner, chain, share, device), alignment)


@pytest.mark.parametrize("planner", GRAPH_PLANNERS)
@FEW
@given(graph=graphs(), share=st.floats(0, 1), device=devices(memory=1), alignment=st.sampled_from([1, 1, 2, 3]))
def test_plans_of_graphs(planner: str, graph: ms.Graph, share: float, device: ms.Device, alignment: int) -> None:
    assume(min(device.d2h, device.h2d) > 0)
    check_addresses(planned(planner, graph, share, device), alignment)


def skips_for_more_workspace(graph: ms.Graph) -> bool:
    """Whether an op's workspace is larger without its tape: then two small blocks may fit where the one does not."""
    return any(one.get("skip_workspace", 0) > min(way["workspace"] for way in one["choices"]) for one in graph.ops)


def test_where_skipping_takes_one_large_block_no_arena_is_proven_lowest() -> None:
    """Beside y, B's tape and workspace fit into the gaps that x and z leave, 2 bytes each; its 3 bytes alone do not."""
    tensors = [*(tensor(name, size, "input") for name, size in (("x", 2), ("y", 1), ("z", 2))), tensor("tape", 2)]
    ops = [op("A", ["x", "z"], [], 1.0), op("B", ["y"], ["tape"], 1.0, workspace=2, tape=["tape"], skip_workspace=3)]
    graph = ms.Graph.from_json(graph_json(tensors, ops))
    assert least_joint_height(graph, any_run=True) == 5
    found = ms.olla(graph, M=6)
    assert (found.peak_memory, found.placement.height) == (5, 6)  # type: ignore[union-attr]
    assert not found.params["memory_optimal"]


@FEW
@given(case=with_kept(random_graphs(max_ops=5)))
def test_small_graphs_are_solved_as_one(case: tuple[ms.Graph, frozenset[str]]) -> None:
    graph, keep = case
    least = least_joint_height(graph, keep) + graph.resident
    try:
        found = ms.olla(graph, max(1, least), keep=keep)
    except ms.InfeasibleError as error:
        raise AssertionError(f"needs {error.min_memory}, but {least} is enough") from error
    assert found.placement is not None
    assert found.placement.height + graph.resident == least
    best = least_joint_height(graph, keep, any_run=True) + graph.resident
    assert not found.params["memory_optimal"] or least == best
    assert found.params["memory_optimal"] or skips_for_more_workspace(graph)
    assert found.params["peak_bound"] <= best
    ms.validate(found)


@FEW
@given(graph=random_graphs(max_ops=10))
def test_an_arena_is_no_lower_than_the_best_order(graph: ms.Graph) -> None:
    least = ms.min_memory(graph, "olla")
    found = ms.olla(graph, max(1, least))
    ms.validate(found)
    assert found.peak_memory <= max(1, least)
    assert least >= best_order(graph)[0]
    if least > 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.olla(graph, least - 1)
        assert caught.value.min_memory == least


@pytest.mark.parametrize("name", WORKED)
def test_worked_graphs_need_no_more_than_their_best_order(name: str) -> None:
    graph, _, best = WORKED[name]
    assert ms.min_memory(graph, "olla") == best
    assert ms.olla(graph, best).placement.fragmentation == 0  # type: ignore[union-attr]


def test_fast_algorithms_where_they_raise_no_peak() -> None:
    choices = [
        {"alg": "slow", "time": 3.0, "workspace": 0},
        {"alg": "fast", "time": 1.0, "workspace": 4},
        {"alg": "fastest", "time": 0.5, "workspace": 6},
    ]
    ops = [
        op("A", [], ["a"], 0.0, choices=choices),
        op("B", ["a"], ["b"], 0.0, choices=choices),
        op("C", ["b"], ["c"], 0.0, choices=choices),
    ]
    tensors = [tensor("a", 5), tensor("b", 5), tensor("c", 1)]
    found = ms.olla(ms.Graph.from_json(graph_json(tensors, ops)), 10)
    assert [step["alg"] for step in found.schedule.steps if "run" in step] == ["fast", "slow", "fast"]
    assert found.peak_memory == 10


def test_the_best_of_the_two_integer_programs() -> None:
    pytest.importorskip("highspy", reason="needs memsched[ilp]")
    for graph, _, best in WORKED.values():
        found = ms.olla(graph, best, method="ilp")
        assert found.peak_memory == best
        ms.validate(found)


def test_addresses_make_no_step_wait_where_there_is_room() -> None:
    chain = ms.profiles.load("resnet50-224-b32")
    memory = int(0.6 * ms.min_memory(chain) + 0.4 * ms.peak_memory(chain))
    for planner in (ms.greedy, ms.pofo, ms.rotor):
        result = planner(chain, memory, 12e9)
        assert ms.with_addresses(result).makespan == pytest.approx(result.makespan, rel=1e-9)


def test_a_plan_of_a_family_is_placed_at_its_largest_batch() -> None:
    family = ms.profiles.analytic("alexnet", 512)
    result = ms.modnn(family, 3 * 10**9, 12e9)
    assert result.placement is not None
    assert ms.validate_placement(result.placement.buffers, result.placement.offsets) == result.placement.height
    assert ms.place(result).height <= result.placement.height


CHAIN = ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4])


def test_what_cannot_be_placed() -> None:
    result = ms.offload(CHAIN, M=20, beta=1)
    read = ms.Timeline.from_json(result.timeline.to_json())
    family = rounds_with_inputs(2)
    held = ms.Graph([tensor("w", 5, "weight")], [op("A", ["w"], [], 1.0)])  # the same bytes all the time
    kept = ms.selective(held, 5, 1.0)
    for timeline in (
        read,
        ms.modnn(family, ms.peak_memory(family), 1.0).timeline,
        pickle.loads(pickle.dumps(kept.timeline)),
        ms.selective(ms.GraphFamily(lambda batch: held, 1), 5, 1.0).timeline,
    ):
        with pytest.raises(ms.InvalidInputError, match=r"the timeline does not know its buffers: .*: give the Result"):
            ms.place(timeline)
    assert ms.place(kept.timeline).height == ms.place(kept).height == 5
    with pytest.raises(ms.InvalidInputError, match="alignment is 2, but each Buffer has its own"):
        ms.place([ms.Buffer(0, 1, 2)], alignment=2)
    with pytest.raises(ms.InvalidInputError, match="alignment is 0"):
        ms.place(result, alignment=0)
    with pytest.raises(ms.InvalidInputError, match="the placement belongs to another result"):
        ms.with_addresses(result, ms.place([ms.Buffer(0, 1, 2)]))
    with pytest.raises(ms.InvalidInputError, match="result is a int and placement a NoneType"):
        ms.with_addresses(5)  # type: ignore[arg-type]
    with pytest.raises(ms.InvalidInputError, match="time_limit is 'x'"):
        ms.with_addresses(result, time_limit="x")  # type: ignore[arg-type]
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.place(result, capacity=10)
    assert caught.value.min_memory == 20


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "best"}, "method is 'best'; it must be one of search, ilp"),
        ({"tries": -1}, "tries is -1"),
        ({"alignment": 0}, "alignment is 0"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"time_limit": None}, "time_limit is None"),
        ({"keep": ["b"]}, "keep has 'b', which is no tensor"),
        ({"keep": 5}, "keep is 5; it must be a list of names"),
        ({"keep": "abc"}, "keep is 'abc'; it must be a list of names"),
    ],
)
def test_bad_options_of_olla(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=sentence):
        ms.olla(WORKED["diamond"].graph, 200, **options)  # type: ignore[arg-type]


def rounds_with_inputs(batch: int) -> ms.GraphFamily:
    """Inputs of which the last begins lower in the smaller rounds, where others are gone."""

    def make(size: int) -> ms.Graph:
        choices = [{"alg": "a", "time": 1.0, "workspace": 0}, {"alg": "b", "time": 0.0, "workspace": 2 * size}]
        inputs = [tensor("x", 3 * size, "input"), tensor("y", 3 * size, "input"), tensor("z", 1 + 5 * size, "input")]
        ops = [op("A", ["z"], ["a"], 2.5, kind="conv"), op("B", ["z"], ["b"], 1.0, kind="conv", choices=choices)]
        return ms.Graph([*inputs, tensor("a", 2), tensor("b", 3 * size)], ops, batch=size)

    return ms.GraphFamily(make, batch)


@given(st.integers(2, 7), st.data(), st.booleans())
@example(5, 42, False)
@example(5, 30, True)
def test_addresses_hold_in_the_smaller_rounds_too(batch: int, data: st.DataObject | int, more: bool) -> None:
    family = rounds_with_inputs(batch)
    least = ms.min_memory(family, "modnn")
    memory = data if isinstance(data, int) else data.draw(st.integers(least, max(least, ms.peak_memory(family))))
    planner = ms.vdnn_plus if more else partial(ms.modnn, rounds="search")
    try:
        result = planner(family, memory, 1.0)
    except ms.InfeasibleError as error:
        result = planner(family, error.min_memory, 1.0)
    for placement in (None, ms.place(result)):
        try:
            placed = ms.with_addresses(result, placement)
        except ms.InfeasibleError:
            assert placement is not None  # its own addresses fit
            continue
        assert placed.placement is not None
        assert placed.placement.height <= placed.device.memory
        assert ms.validate(placed).makespan == pytest.approx(placed.makespan)
        assert ms.Result.from_json(placed.to_json()).to_json() == placed.to_json()
