"""Order and addresses by one integer program, OLLA's equation 9: `olla(.., method="ilp")`."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.arena.ilp import joint
from memsched.arena.ilp.joint import joint_ilp
from memsched.errors import LimitError, MemschedError
from oracles.olla_graphs import FIGURE_3, WORKED, random_graphs, with_kept
from oracles.orders import all_orders, best_order, least_runs, peak_of
from oracles.placements import least_height, least_joint_height, lived
from test_addresses import skips_for_more_workspace
from test_ilp import Case, large_graph, no_shortcuts, times

FEW = settings(max_examples=max(10, settings().max_examples // 5))


@pytest.fixture(autouse=True, scope="module")
def _highs() -> None:
    pytest.importorskip("highspy", reason="memsched.ilp needs highspy, which is not installed")


def least_aligned(graph: ms.Graph, keep: frozenset[str], alignment: int) -> int:
    """The least height over all orders, with the least run of each op; inputs and weights are packed."""
    runs, best = least_runs(graph, keep), None
    for blocks in {tuple(lived(graph, order, keep, runs)) for order in all_orders(graph)}:
        aligned = [one if one.offset is not None else one._replace(alignment=alignment) for one in blocks]
        found = least_height(aligned)
        best = found if best is None else min(best, found)
    assert best is not None
    return best


def check(graph: ms.Graph, found: ms.Result, alignment: int = 1) -> int:
    """The height of the arena, resident included, by judges that know nothing of the program."""
    placement = found.placement
    assert placement is not None
    assert found.schedule.memory == "contiguous"
    height = ms.validate_placement(placement.buffers, placement.offsets)
    assert height == placement.height
    assert placement.load <= placement.lower_bound <= height
    places = zip(placement.buffers, placement.offsets, strict=True)
    assert all(one.offset is not None or at % alignment == 0 for one, at in places)
    assert found.peak_memory <= height + graph.resident <= found.device.memory
    assert ms.validate(found).peak_memory == found.peak_memory
    assert not found.offloaded
    assert not found.recomputed
    assert ms.Result.from_json(found.to_json()) == found
    return height + graph.resident


@FEW
@given(with_kept(random_graphs(5, 5)), st.sampled_from((1, 1, 2, 3)), st.booleans())
def test_no_order_and_no_addresses_are_lower(case: Case, alignment: int, shortcuts: bool) -> None:
    graph, keep = case
    free = [one for one in lived(graph, range(len(graph.ops)), keep) if one.size and one.offset is None]
    assume(len(free) <= 4)
    least = least_aligned(graph, keep, alignment) + graph.resident
    options = {"method": "ilp", "keep": keep, "alignment": alignment}
    if shortcuts:
        found = ms.olla(graph, max(1, least), **options)  # type: ignore[arg-type]
    else:
        with no_shortcuts(joint=True):
            found = ms.olla(graph, max(1, least), **options)  # type: ignore[arg-type]
    assert check(graph, found, alignment) == least
    assert found.params["memory_optimal"] or skips_for_more_workspace(graph)
    if alignment == 1:
        best = least_joint_height(graph, keep, any_run=True) + graph.resident
        assert found.params["peak_bound"] <= best
        assert not found.params["memory_optimal"] or least == best
    if least > 1:
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.olla(graph, least - 1, **options)  # type: ignore[arg-type]
        assert caught.value.min_memory == least


@FEW
@given(random_graphs(4, 5), st.sampled_from((512, 10**10 + 19)), st.booleans())
def test_large_sizes_prove_nothing_false(graph: ms.Graph, factor: int, odd: bool) -> None:
    """With a common divisor they are small ones; with one odd byte they are not."""
    large = times(graph, factor).to_json()
    if odd:
        large["tensors"].append({"name": "odd", "size": 1, "role": "activation"})
        large["ops"][-1]["writes"].append("odd")
    graph = ms.Graph.from_json(large)
    free = [one for one in lived(graph, range(len(graph.ops))) if one.size and one.offset is None]
    assume(len(free) <= 5)
    with no_shortcuts(joint=True):
        found = ms.olla(graph, 2**50, method="ilp")
    least, best = (least_joint_height(graph, any_run=one) + graph.resident for one in (False, True))
    assert found.params["peak_bound"] <= best
    assert least <= check(graph, found)
    assert odd or check(graph, found) == least


@FEW
@given(with_kept(random_graphs(8)))
def test_its_bound_agrees_with_the_others(case: Case) -> None:
    """The dynamic program over sets of ops, the minimum cuts of `order`, and the arena that the search finds."""
    graph, keep = case
    found = ms.olla(graph, 2**30, method="ilp", keep=keep)
    height, bound = check(graph, found), found.params["peak_bound"]
    searched = ms.olla(graph, 2**30, keep=keep)
    assert bound <= check(graph, searched)
    assert max(best_order(graph, keep)[0], ms.order(graph, keep=keep).lower_bound) <= height
    if found.params["memory_optimal"]:
        assert bound == height <= check(graph, searched)


@pytest.mark.parametrize("name", WORKED)
def test_worked_graphs(name: str) -> None:
    graph, _, best = WORKED[name]
    found = ms.olla(graph, best, method="ilp")
    assert check(graph, found) == best == found.params["peak_bound"]
    assert found.params["memory_optimal"]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "count", "apart", "together"), [(47, 8, 49, 48), (117, 9, 85, 84), (117, 10, 85, 85)])
def test_both_at_once_do_better_than_one_after_the_other(seed: int, count: int, apart: int, together: int) -> None:
    """The addresses of the first best order leave a gap. Another order has none, or it is proven that none has."""
    graph = large_graph(seed, count)
    order = joint.exact_order(joint.net_of(graph, frozenset()), float("inf"))
    assert order.optimal
    assert peak_of(graph, order.order) == order.peak_memory == best_order(graph)[0] < apart
    alone = lived(graph, order.order)
    assert joint.place_ilp([ms.Buffer(*one[:3], offset=one.offset) for one in alone if one.size])[1] == apart
    found = ms.olla(graph, together, method="ilp")
    assert check(graph, found) == found.params["peak_bound"] == together
    assert found.params["memory_optimal"]


def test_fast_algorithms_where_the_arena_has_room() -> None:
    choices = [{"alg": "slow", "time": 3.0, "workspace": 0}, {"alg": "fast", "time": 1.0, "workspace": 4}]
    tensors = [{"name": name, "size": size, "role": "activation"} for name, size in (("a", 5), ("b", 5), ("c", 1))]
    ops = [
        {"name": "A", "phase": "fwd", "reads": [], "writes": ["a"], "choices": choices},
        {"name": "B", "phase": "fwd", "reads": ["a"], "writes": ["b"], "choices": choices},
        {"name": "C", "phase": "fwd", "reads": ["b"], "writes": ["c"], "choices": choices},
    ]
    graph = ms.Graph(tensors, ops)
    found = ms.olla(graph, 10, method="ilp")
    assert check(graph, found) == 10
    assert [step["alg"] for step in found.schedule.steps if "run" in step] == ["fast", "slow", "fast"]


@pytest.mark.parametrize("seconds", [0, 0.05, 0.5])
def test_when_time_is_over_there_is_a_plan_with_an_honest_bound(seconds: float) -> None:
    graph = large_graph(1, 30)
    found = ms.olla(graph, 2**30, method="ilp", time_limit=seconds)
    assert found.params["peak_bound"] <= ms.min_memory(graph, "olla") <= check(graph, found)
    assert found.params["memory_optimal"] == (check(graph, found) == found.params["peak_bound"])


def test_ctrl_c_ends_it() -> None:
    """Without the signal this takes a minute."""
    main = threading.main_thread().ident or 0
    timer = threading.Timer(1.0, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ms.olla(large_graph(2, 60), 2**30, method="ilp", time_limit=60.0)
    finally:
        timer.join()


def test_large_graphs_are_refused() -> None:
    most = joint.MOST_OPS
    assert ms.olla(large_graph(0, most), 2**30, method="ilp", time_limit=0).placement is not None
    remedy = "take method='search', or order and place with method='ilp', one after the other"
    with pytest.raises(LimitError, match=f"takes at most {most} ops, and '.*' has {most + 1}; {remedy}"):
        ms.olla(large_graph(0, most + 1), 2**30, method="ilp")


def test_from_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("click")
    from click.testing import CliRunner

    from memsched.cli.app import command_line

    large_graph(117, 9).save(tmp_path / "graph.json")
    spec = """problems = ["graph.json"]
planners = ["olla"]
memory = [83, 84]
bandwidth = [0]
[options.olla]
method = "ilp"
"""
    (tmp_path / "spec.toml").write_text(spec, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = CliRunner().invoke(command_line, ["sweep", "spec.toml", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [(row["options"], row["status"]) for row in rows] == [
        ({"method": "ilp"}, "infeasible"),
        ({"method": "ilp"}, "planned"),
    ]


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MemschedError, match=r"pip install 'memsched\[ilp\]'"):
        ms.olla(FIGURE_3, 100, method="ilp")
    with pytest.raises(MemschedError, match=r"pip install 'memsched\[ilp\]'"):
        joint_ilp(FIGURE_3)
    assert ms.olla(FIGURE_3, 100).params["method"] == "search"
