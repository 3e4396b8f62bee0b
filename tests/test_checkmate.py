"""Checkmate against all plans of its class, and against all plans without a link."""

from __future__ import annotations

import sys
import time
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.arena.ilp.recompute import recompute_ilp
from memsched.arena.ilp.turns import turns_of
from memsched.planners.registry import planners_of
from memsched.planners.remat.pebbles import pebbles
from memsched.testing import graphs
from oracles.checkmate import least_memory, least_time
from oracles.olla_graphs import FIGURE_3, random_graphs

CLOSE = 1e-7
SMALL = st.one_of(random_graphs(6), random_graphs(6, 10**9), graphs(max_layers=3, max_bytes=4))


@pytest.fixture(autouse=True, scope="module")
def _highs() -> None:
    pytest.importorskip("highspy", reason="checkmate needs highspy, which is not installed")


def small(graph: ms.Graph) -> ms.Graph:
    assume(len(graph.ops) <= 7 and len(graph.tensors) <= 9)
    return graph


def plain(count: int) -> ms.Graph:
    """A chain with tensors of one byte and runs of one second, as in figure 1 of the paper."""
    return ms.to_graph(ms.Chain([1.0] * count, [1.0] * count, [1] * (count + 1), [1] * (count + 1)))


@settings(max_examples=settings().max_examples, suppress_health_check=[HealthCheck.filter_too_much])
@given(graph=SMALL.map(small), data=st.data())
def test_its_plans_are_the_best_of_its_class(graph: ms.Graph, data: st.DataObject) -> None:
    everything = sum(tensor["size"] for tensor in graph.tensors)  # weights stay, which the plain run frees
    scratch = max((way["workspace"] for op in graph.ops for way in op["choices"]), default=0)
    least = least_memory(graph, graph.resident + everything + scratch + 9)
    top = max(least, ms.peak_memory(graph) + 3)
    memory = data.draw(st.one_of(st.just(max(1, least)), st.integers(max(1, least), max(1, top))))
    best = least_time(graph, memory)
    found = ms.checkmate(graph, memory)
    assert found.makespan == pytest.approx(best, rel=CLOSE)
    assert best * (1 - CLOSE) <= found.params["class_bound"] <= best * (1 + 1e-9)
    assert found.params["class_optimal"]
    assert found.offloaded == ()
    report = ms.validate(found)
    assert report.peak_memory <= memory
    assert report.makespan == pytest.approx(best, rel=CLOSE)


@settings(max_examples=max(15, settings().max_examples // 5), suppress_health_check=[HealthCheck.filter_too_much])
@given(graph=st.one_of(random_graphs(6), graphs(max_layers=3, max_bytes=4)).map(small))
def test_the_least_memory_is_that_of_its_class(graph: ms.Graph) -> None:
    least = ms.min_memory(graph, "checkmate")
    assert least == least_memory(graph, least)
    if least > 1:
        assert least_time(graph, least - 1) == inf
        with pytest.raises(ms.InfeasibleError, match=f"it needs at least .*{least:,}") as caught:
            ms.checkmate(graph, least - 1)
        assert caught.value.min_memory == least


@settings(max_examples=60)
@given(graph=graphs(max_layers=5), share=st.floats(0, 1))
def test_no_plan_of_all_plans_is_slower(graph: ms.Graph, share: float) -> None:
    """Pebbles plays all that a plan may do, in any order; its first search proves its plan where it ends."""
    least = max(1, ms.min_memory(graph, "checkmate"))
    memory = int(least + share * max(0, ms.peak_memory(graph) - least))
    found = ms.checkmate(graph, memory)
    assert found.lower_bound <= found.makespan * (1 + CLOSE)
    try:
        other = pebbles(graph, memory, 0)
    except ms.LimitError:
        return
    if other.params["seen"] < other.params["states"]:
        assert other.makespan <= found.makespan * (1 + CLOSE)


def test_a_chain_of_the_paper() -> None:
    """Without memory to spare, each step back runs the forward again from the input."""
    graph = plain(4)
    least = ms.min_memory(graph, "checkmate")
    tight, loose = ms.checkmate(graph, least), ms.checkmate(graph, ms.peak_memory(graph))
    assert tight.makespan == least_time(graph, least) > loose.makespan == 8
    assert ms.rotor(ms.Chain([1.0] * 4, [1.0] * 4, [1] * 5, [1] * 5), least, 0).makespan >= tight.makespan


def test_what_fits_exactly_is_not_cut_off() -> None:
    """A workspace of all the memory beside a tensor of one byte: rounding once made HiGHS prove a second run."""
    tensors = [{"name": "x", "size": 0, "role": "input"}]
    tensors += [{"name": name, "size": size, "role": "activation"} for name, size in (("a", 0), ("b", 1))]
    reads_writes: list[tuple[list[str], list[str], int]] = [([], ["a"], 10**9), ([], [], 0), ([], [], 0)]
    reads_writes += [([], ["b"], 0), (["x", "a", "b"], [], 0)]
    ops = [
        {
            "name": f"o{k}",
            "phase": "fwd",
            "reads": reads,
            "writes": writes,
            "choices": [{"alg": "one", "time": 1.0, "workspace": scratch}],
        }
        for k, (reads, writes, scratch) in enumerate(reads_writes)
    ]
    assert recompute_ilp(turns_of(ms.Graph(tensors, ops), timed=True), 10**9).bound == pytest.approx(5)


def one_op(name: str, reads: list[str], writes: list[str], *choices: tuple[float, int]) -> dict[str, Any]:
    algorithms = [{"alg": f"a{k}", "time": time, "workspace": space} for k, (time, space) in enumerate(choices)]
    return {"name": name, "phase": "fwd", "reads": reads, "writes": writes, "choices": algorithms}


def tensor(name: str, size: int, role: str = "activation") -> dict[str, Any]:
    return {"name": name, "size": size, "role": role}


@pytest.mark.parametrize("large", [10**6, 10**8, 2_000_000_014, 2**34 + 2])
def test_a_byte_beside_gigabytes_refuses_nothing(large: int) -> None:
    """HiGHS once cut off all runs."""
    ops = [one_op("A", [], ["p"], (1.0, 0)), one_op("B", ["p"], ["q"], (1.0, 0), (0.0, 1))]
    ops += [one_op("C", [], [], (1.0, large // 2 + 7)), one_op("D", ["q"], [], (1.0, 0))]
    graph = ms.Graph([tensor("p", 1), tensor("q", large)], ops)
    result = ms.checkmate(graph, large + large // 2)
    assert result.makespan == 3.0
    assert result.params["class_optimal"]


def test_a_workspace_of_a_few_bytes_beside_terabytes_proves_nothing_false() -> None:
    tensors = [tensor("x", 43000000000, "input"), tensor("p", 87182514852), tensor("q", 348730059402)]
    tensors += [tensor("r", 392321316827), tensor("s", 392321316825)]
    ops = [one_op("A", ["x"], ["p", "q"], (1.0, 0)), one_op("B", [], ["r"], (1.0, 0))]
    ops += [one_op("C", ["p", "r"], ["s"], (1.0, 0), (0.0, 7)), one_op("D", ["q"], [], (1.0, 0))]
    assert ms.checkmate(ms.Graph(tensors, ops, resident=3), 1220555207908).makespan == 4.0


@pytest.mark.parametrize("large", [7340034, 83 * 10**6 + 1, 2**40 + 1])
def test_the_least_memory_is_exact_beside_megabytes(large: int) -> None:
    tensors = [tensor("x", large, "input"), tensor("p", 2), tensor("q", 1), tensor("r", 2)]
    ops = [one_op("A", ["x"], ["p"], (1.0, 0)), one_op("B", ["x"], ["q", "r"], (1.0, 1))]
    ops += [one_op("C", ["p", "q"], [], (1.0, 10)), one_op("D", ["r"], [], (1.0, 0))]
    assert ms.min_memory(ms.Graph(tensors, ops), "checkmate") == large + 5


@pytest.mark.parametrize(("large", "small"), [(2**43 + 3, 1), (2**43 + 3, 3), (2**46 + 1, 9)])
def test_a_byte_beside_terabytes_counts(large: int, small: int) -> None:
    """HiGHS takes both for the same: the least memory was that of the plain run, which holds a few bytes more."""
    sizes = {"x": small, "y": large, "z": 2}
    tensors = [{"name": name, "size": size, "role": "activation"} for name, size in sizes.items()]
    runs: list[tuple[list[str], list[str], int]] = [([], ["x", "z"], 0), (["z"], ["y"], 0), (["y"], [], 2)]
    runs.append((["x"], [], 0))
    ops = [
        {"name": f"o{k}", "phase": "fwd", "reads": reads, "writes": writes, "choices": [choice]}
        for k, (reads, writes, space) in enumerate(runs)
        for choice in ({"alg": "one", "time": 1.0, "workspace": space},)
    ]
    graph, least = ms.Graph(tensors, ops), large + 2
    assert ms.min_memory(graph, "checkmate") == least
    assert ms.checkmate(graph, least).recomputed == ("o0",)
    with pytest.raises(ms.InfeasibleError, match=f"it needs at least .*{least:,}"):
        ms.checkmate(graph, least - 1)


def test_graphs_that_are_too_large_are_refused_with_the_number_of_variables() -> None:
    graph = ms.profiles.load_graph("gpt2-1024-b8")
    most = ms.min_memory(graph, "checkmate")
    assert ms.checkmate(graph, most).recomputed == ()
    with pytest.raises(
        ms.LimitError, match=rf"has at least \d+ variables, and 20000 are the most; give at least .*{most:,}"
    ):
        ms.checkmate(graph, most - 1)
    with pytest.raises(ms.InfeasibleError, match=f".*{most:,} bytes. is enough, and less may do") as caught:
        ms.checkmate(graph, 1000)
    assert caught.value.min_memory == most


def test_no_time_gives_the_listed_order_or_none() -> None:
    graph = ms.profiles.analytic("alexnet", 512).graph
    with pytest.raises(ms.LimitError, match="within the time_limit"):
        ms.checkmate(graph, int(0.95 * ms.peak_memory(graph)), time_limit=0)
    once = ms.checkmate(graph, ms.min_memory(graph, "olla") + 2**20, time_limit=0)
    assert once.recomputed == ()
    assert not once.params["class_optimal"]


def test_it_runs_only_where_it_is_named() -> None:
    assert "checkmate" not in planners_of(FIGURE_3)
    assert "checkmate" not in ms.compare(FIGURE_3, 60, 1.0)
    assert ms.plan(FIGURE_3, 60, planner="checkmate").planner == "checkmate"
    assert list(ms.compare(FIGURE_3, 60, 1.0, planners=["checkmate"])) == ["checkmate"]


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ms.MemschedError, match=r"pip install 'memsched\[ilp\]'"):
        ms.checkmate(plain(4), ms.peak_memory(plain(4)) - 1)


@given(data=st.data(), timed=st.booleans())
def test_of_the_ways_to_run_an_op_those_stay_that_no_other_one_serves(data: st.DataObject, timed: bool) -> None:
    few = st.integers(0, 3)
    names, tape = ["p", "q", "u"], data.draw(st.lists(st.sampled_from(["q", "u"]), unique=True))
    tensors = [{"name": name, "size": data.draw(few), "role": "activation"} for name in names]
    ways = [{"alg": f"{k}", "time": data.draw(few), "workspace": data.draw(few)} for k in range(data.draw(few) + 1)]
    op = {"name": "f", "phase": "fwd", "reads": [], "writes": names, "choices": ways, "tape": tape}
    used = data.draw(st.lists(st.sampled_from(["p", "q"]), unique=True))
    last = {"name": "b", "phase": "bwd", "reads": used, "writes": [], "choices": ways[:1]}
    turns = turns_of(ms.Graph(tensors, [op, last]), timed=timed)
    size = {one["name"]: one["size"] for one in tensors}
    every = []  # (what of `used` it writes, bytes, seconds)
    for left in [[], tape] if tape else [[]]:
        writes = [name for name in names if name not in left]
        for way in ways:
            every.append((set(writes) & set(used), way["workspace"] + sum(map(size.get, writes)), way["time"] * timed))

    def serves(one: Any, other: Any) -> bool:
        return one[0] >= other[0] and one[1] <= other[1] and one[2] <= other[2]

    best: list[Any] = []
    for one in every:
        if not any(serves(other, one) for other in best):
            best = [other for other in best if not serves(one, other)] + [one]
    sizes = [item.size for item in turns.items]
    kept = [(way.bytes(sizes), way.seconds * timed) for way in turns.ways[0]]
    assert sorted(kept) == sorted((space, seconds) for _, space, seconds in best)


def test_times_that_are_next_to_nothing_are_planned() -> None:
    chain = ms.Chain([5e-324, 0, 0], [0, 0, 0], [4] * 4, [4] * 4)
    assert ms.checkmate(chain, ms.peak_memory(chain)).makespan == 5e-324
    with pytest.raises(ms.InfeasibleError, match="it needs at least 20"):
        ms.checkmate(chain, 16)


def test_figures_that_highs_cannot_tell_apart_are_named() -> None:
    """The error said that the time was over, after a millisecond of ten seconds."""
    sizes = {"t0": 29655428, "t1": 63352872, "tp1": 70104483, "t2": 58741825}
    tensors = [{"name": name, "size": size, "role": "activation"} for name, size in sizes.items()]
    runs = [([], ["t0"], [(0.0, 0)]), ([], ["t1", "tp1"], [(1.0, 0)])]
    runs.append((["t0"], ["t2"], [(0.0, 81742379), (0.0, 63853363), (1e200, 0)]))
    ops = [
        {
            **{"name": f"f{k}", "phase": "fwd", "layer": 1, "kind": "fc", "reads": reads, "writes": writes},
            "choices": [{"alg": f"a{a}", "time": time, "workspace": space} for a, (time, space) in enumerate(ways)],
        }
        for k, (reads, writes, ways) in enumerate(runs)
    ]
    graph = ms.Graph(tensors, ops)
    with pytest.raises(
        ms.LimitError, match=r"differ by more than HiGHS can tell apart; give at least .*163,112,783 bytes"
    ):
        ms.checkmate(graph, ms.min_memory(graph, "checkmate"))


def test_time_that_is_up_is_named_whatever_is_left_for_the_rest() -> None:
    """HiGHS has nine tenths of the time; the reason was looked for in what is left."""
    graph = ms.profiles.analytic("vgg16", 128, gpu="k40m").graph
    reasons = []
    for share in (0.2, 0.3, 0.4, 0.5):
        try:
            ms.checkmate(graph, int(6116432192 + share * 2.8e9), time_limit=0.1)
        except ms.LimitError as error:
            reasons.append(str(error))
    assert all("within the time_limit" in reason for reason in reasons)


def test_many_algorithms_are_read_in_short_time() -> None:
    """Of ops with thousands, all but a few serve no purpose: others take less time and no more bytes."""
    choices = [{"alg": f"a{k}", "time": 1 + k / 100, "workspace": max(0, 50 - k)} for k in range(3000)]
    tensors = [{"name": f"t{k}", "size": 5, "role": "activation"} for k in range(20)]
    ops = [
        {"name": f"o{k}", "phase": "fwd", "reads": [f"t{k - 1}"] if k else [], "writes": [f"t{k}"], "choices": choices}
        for k in range(20)
    ]
    graph = ms.Graph(tensors, ops)
    began = time.process_time()
    turns = turns_of(graph, timed=True)
    assert time.process_time() - began < 1.5
    assert [len(ways) for ways in turns.ways] == [51] * 20
