"""The oracles against values worked out by hand, against each other, and against known vectors."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.exhaustive import least_makespan
from oracles.fractional_lp import aggregate_lp, from_graph, in_class_lp, item_lp
from oracles.interruptible import best_fluid, fluid_makespan, least_memory, peak_memory
from oracles.to_graph_py import to_graph_py

VECTORS = json.loads((Path(__file__).parent / "vectors" / "interruptible.json").read_text())
LISTS = ("uF", "uB", "x", "y", "exF", "exB")

# Two stages, one second each way; three activations of 4 bytes, and 10 bytes of memory.
SMALL = {"uF": [1, 1], "uB": [1, 1], "x": [4, 4, 4], "y": [0, 0, 0], "exF": [0, 0], "exB": [0, 0]}
# Offloading one activation after another is back: 16 seconds, 17 in the class of section 5.
WITNESS = {
    "uF": [0, 4, 1],
    "uB": [1, 3, 3],
    "x": [3, 4, 1, 3],
    "y": [3, 4, 3, 2],
    "exF": [2, 0, 2],
    "exB": [0, 1, 2],
}


def graph_of(lists: dict[str, list[int]]) -> dict[str, Any]:
    """The graph of the chain that is the paper's lists."""
    keys = (
        "forward_time",
        "backward_time",
        "activation",
        "gradient",
        "forward_overhead",
        "backward_overhead",
    )
    return to_graph_py(dict(zip(keys, (lists[k] for k in LISTS), strict=True)))


@st.composite
def paper_lists(draw: st.DrawFn, max_stages: int = 3) -> tuple[dict[str, list[int]], int, int]:
    """Small lists, a feasible memory and a bandwidth."""
    n = draw(st.integers(1, max_stages))
    spans = {
        "uF": (0, 5, n),
        "uB": (0, 6, n),
        "x": (1, 9, n + 1),
        "y": (0, 6, n + 1),
        "exF": (0, 3, n),
        "exB": (0, 3, n),
    }
    lists = {k: draw(st.lists(st.integers(a, b), min_size=c, max_size=c)) for k, (a, b, c) in spans.items()}
    sizes = [lists[k] for k in ("x", "y", "exF", "exB")]
    memory = draw(st.integers(int(least_memory(*sizes)), int(peak_memory(*sizes))))
    return lists, memory, draw(st.integers(1, 3))


def subsets(n: int) -> list[tuple[int, ...]]:
    return [chosen for count in range(n + 1) for chosen in combinations(range(n), count)]


@pytest.mark.parametrize("vector", VECTORS)
def test_interruptible_vectors(vector: dict[str, Any]) -> None:
    instance = [vector[k] for k in (*LISTS, "M", "beta")]
    found = best_fluid(*instance)
    assert found is not None
    assert found[0] == pytest.approx(vector["makespan"])
    assert fluid_makespan(*instance, vector["offloaded"]) == pytest.approx(vector["makespan"])


def test_small_by_hand_in_three_models() -> None:
    """F_2 waits until x_0 has left far enough, and B_1 until it is back.

    Fractional: 2 bytes leave in [0, 2], F_2 and B_2 run in [2, 4], the bytes return in [4, 6], B_1 ends at 7.
    Interruptible: x_0 leaves in [0, 4], returns in [4, 8] in B_2's shadow, B_1 ends at 9.
    Whole: F_2 starts at 4, x_0 finds room again only at 6, is back at 10, B_1 ends at 11.
    """
    step = from_graph(graph_of(SMALL), 10, {"bandwidth": 1})
    assert aggregate_lp(step) == pytest.approx(7)
    assert item_lp(step) == pytest.approx(7)
    assert best_fluid(**SMALL, M=10, beta=1) == (9, {0})
    assert in_class_lp(step, frozenset({0})) == pytest.approx(9)
    found = least_makespan(graph_of(SMALL), 10, {"bandwidth": 1})
    assert found is not None
    assert found.makespan == 11


def test_witness_outside_the_class() -> None:
    assert best_fluid(**WITNESS, M=14, beta=1) == (17, {0, 1})
    step = from_graph(graph_of(WITNESS), 14, {"bandwidth": 1})
    assert item_lp(step, frozenset({0, 1})) == pytest.approx(16)
    assert in_class_lp(step, frozenset({0, 1})) == pytest.approx(17)
    found = least_makespan(graph_of(WITNESS), 14, {"bandwidth": 1})
    assert found is not None
    assert found.makespan == 19


@pytest.mark.parametrize("memory", [12, 100])
def test_enough_memory_costs_nothing(memory: int) -> None:
    step = from_graph(graph_of(SMALL), memory, {"bandwidth": 0})
    assert aggregate_lp(step) == pytest.approx(4)
    assert item_lp(step) == pytest.approx(4)
    found = least_makespan(graph_of(SMALL), memory, {"bandwidth": 0})
    assert found is not None
    assert found.makespan == 4
    assert not any("offload" in s or "prefetch" in s for s in found.steps)


def test_too_little_memory_or_no_link_is_infeasible() -> None:
    for memory, bandwidth in ((7, 1), (11, 0)):
        device = {"bandwidth": bandwidth}
        step = from_graph(graph_of(SMALL), memory, device)
        assert aggregate_lp(step) is None
        assert item_lp(step) is None
        assert least_makespan(graph_of(SMALL), memory, device) is None
    assert best_fluid(**SMALL, M=7, beta=1) is None


def test_free_link_and_latency() -> None:
    """Two latencies of 2 s are paid: one in F_1 and the second after it, one between B_2 and B_1."""
    for latency, whole in ((0, 4), (2, 7)):
        device = {"d2h": "inf", "h2d": "inf", "latency": latency}
        step = from_graph(graph_of(SMALL), 10, device)
        assert aggregate_lp(step) == pytest.approx(4)
        found = least_makespan(graph_of(SMALL), 10, device)
        assert found is not None
        assert found.makespan == whole


def test_duplex_overlaps_the_two_directions() -> None:
    """Three activations of 4 bytes in front; both directions at once can only help."""
    lists = {
        "uF": [1, 1, 4],
        "uB": [1, 1, 4],
        "x": [4, 4, 4, 0],
        "y": [0] * 4,
        "exF": [0] * 3,
        "exB": [0] * 3,
    }
    values = []
    for duplex in (False, True):
        device = {"d2h": 1, "h2d": 2, "duplex": duplex}
        step = from_graph(graph_of(lists), 9, device)
        found = least_makespan(graph_of(lists), 9, device)
        assert found is not None
        bound = aggregate_lp(step)
        assert bound is not None
        assert bound <= found.makespan + 1e-9
        values.append((bound, found.makespan))
    assert values[1] <= values[0]


def test_to_graph_is_the_documented_example() -> None:
    """The printed form: F1 has a tape and the workspace of a run that skips it, F2 has neither."""
    chain = {"forward_time": [1, 2], "backward_time": [2, 3], "activation": [4, 6, 5], "gradient": [0, 6, 5]}
    graph = to_graph_py({**chain, "saved": [9, 5]})
    sizes = [("a0", 4), ("a1", 6), ("tape1", 3), ("a2", 5), ("d2", 5), ("d1", 6), ("d0", 0)]
    assert [(t["name"], t["size"]) for t in graph["tensors"]] == sizes
    assert [t["role"] for t in graph["tensors"]] == ["input"] + ["activation"] * 3 + ["gradient"] * 3
    first, second, loss, b2, b1 = graph["ops"]
    assert first["tape"] == ["tape1"]
    assert first["skip_workspace"] == 3
    assert first["writes"] == ["a1", "tape1"]
    assert "tape" not in second
    assert "skip_workspace" not in second
    assert (loss["reads"], loss["writes"]) == (["a2"], ["d2"])
    assert b2["reads"] == ["a1", "a2", "d2"]
    assert b1["reads"] == ["a0", "a1", "tape1", "d1"]
    assert b1["once"]
    assert [op["choices"][0]["time"] for op in graph["ops"]] == [1, 2, 0, 3, 2]


def test_to_graph_in_pieces() -> None:
    chain = {
        "forward_time": [1],
        "backward_time": [2],
        "activation": [4, 7],
        "gradient": [0, 7],
        "saved": [12],
    }
    cut = to_graph_py({**chain, "pieces": [[1, 4]], "parameters": 5}, 3)
    assert cut["resident"] == 10
    assert [(t["name"], t["size"]) for t in cut["tensors"] if t["role"] != "gradient"] == [
        *(("a0/0", 3), ("a0/1", 1)),
        *(("a1/0", 3), ("a1/1", 3), ("a1/2", 1)),
        *(("tape1/0", 3), ("tape1/1", 2)),
    ]
    assert cut["ops"][1]["reads"] == ["a1/0", "a1/1", "a1/2"]
    stored = to_graph_py({**chain, "pieces": [[1, 4]]}, "storage")
    assert [t["name"] for t in stored["tensors"]] == ["a0", "a1", "tape1/0", "tape1/1", "d1", "d0"]
    assert stored["ops"][0]["tape"] == ["tape1/0", "tape1/1"]
    empty = to_graph_py({**chain, "activation": [4, 0]}, 12)
    assert [t["name"] for t in empty["tensors"]] == ["a0", "a1", "tape1", "d1", "d0"]


@pytest.mark.slow
@settings(max_examples=max(10, settings().max_examples // 5))
@given(paper_lists())
def test_the_formula_is_the_linear_program_of_its_class(case: tuple[dict[str, list[int]], int, int]) -> None:
    lists, memory, beta = case
    step = from_graph(graph_of(lists), memory, {"bandwidth": beta})
    for offloaded in subsets(len(lists["uF"])):
        formula = fluid_makespan(**lists, M=memory, beta=beta, offloaded=offloaded)
        assert in_class_lp(step, frozenset(offloaded)) == (formula and pytest.approx(formula, abs=1e-6))


@settings(max_examples=max(15, settings().max_examples // 5))
@given(paper_lists())
def test_order_of_the_models(case: tuple[dict[str, list[int]], int, int]) -> None:
    lists, memory, beta = case
    graph = graph_of(lists)
    step = from_graph(graph, memory, {"bandwidth": beta})
    fractional, by_item = aggregate_lp(step), item_lp(step)
    interruptible = best_fluid(**lists, M=memory, beta=beta)
    whole = least_makespan(graph, memory, {"bandwidth": beta})
    assert fractional is not None
    assert interruptible is not None
    assert whole is not None
    peak = peak_memory(*(lists[k] for k in ("x", "y", "exF", "exB")))
    simple = max(sum(lists["uF"]) + sum(lists["uB"]), 2 * (peak - memory) / beta)
    assert simple <= fractional + 1e-6
    assert fractional == pytest.approx(by_item, abs=1e-6)
    assert fractional <= interruptible[0] + 1e-6
    assert fractional <= whole.makespan + 1e-6


@settings(max_examples=max(10, settings().max_examples // 5))
@given(paper_lists(max_stages=2), st.data())
def test_fractional_bound_with_tapes(case: tuple[dict[str, list[int]], int, int], data: st.DataObject) -> None:
    lists, _, _ = case
    n = len(lists["uF"])
    tape = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    chain = {
        "forward_time": lists["uF"],
        "backward_time": lists["uB"],
        "activation": lists["x"],
        "gradient": lists["y"],
    }
    graph = to_graph_py({**chain, "saved": [lists["x"][k + 1] + tape[k] for k in range(n)], "resident": 2})
    size = {t["name"]: t["size"] for t in graph["tensors"]}
    least = 2 + max(sum(size[t] for t in op["reads"] + op["writes"]) for op in graph["ops"])
    peak = 2 + max(from_graph(graph, 0, {"bandwidth": 1}).held)
    memory = data.draw(st.integers(least, peak))
    rates = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()))
    device = dict(zip(("d2h", "h2d", "duplex"), rates, strict=True))
    step = from_graph(graph, memory, device)
    whole = least_makespan(graph, memory, device)
    bound = aggregate_lp(step)
    assert whole is not None
    assert bound is not None
    assert bound == pytest.approx(item_lp(step), abs=1e-6)
    assert bound <= whole.makespan + 1e-6
