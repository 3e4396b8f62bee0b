"""OLLA's integer programs against oracles that try everything."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import memsched as ms
from marks import nightly
from memsched.arena.ilp.joint import joint_ilp
from memsched.arena.ilp.model import TimeUpError
from memsched.arena.ilp.order import control_edges_of, order_ilp, updates_of
from memsched.arena.ilp.place import place_ilp
from memsched.errors import InfeasibleError, InvalidInputError, MemschedError
from memsched.testing import graphs
from oracles.olla_graphs import FIGURE_3, WORKED, random_graphs, with_kept, written
from oracles.orders import all_orders, best_order, peak_of
from oracles.placements import Lived, least_height, least_joint_height, lived, overlaps

HIGHS = "memsched.ilp needs highspy, which is not installed"
Case = tuple[ms.Graph, frozenset[str]]


@pytest.fixture(autouse=True, scope="module")
def _highs() -> None:
    pytest.importorskip("highspy", reason=HIGHS)


def ids(graph: ms.Graph, keep: frozenset[str]) -> frozenset[int]:
    return frozenset(k for k, tensor in enumerate(graph.tensors) if tensor["name"] in keep)


def times(graph: ms.Graph, factor: int) -> ms.Graph:
    """The graph with every number of bytes that many times as large."""
    tensors = [{**tensor, "size": tensor["size"] * factor} for tensor in graph.tensors]
    ops = [
        {
            **op,
            "choices": [{**one, "workspace": one["workspace"] * factor} for one in op["choices"]],
            **({"skip_workspace": op["skip_workspace"] * factor} if "skip_workspace" in op else {}),
        }
        for op in graph.ops
    ]
    return ms.Graph(tensors, ops, resident=graph.resident * factor)


@contextmanager
def no_shortcuts(*, joint: bool = False) -> Iterator[None]:
    """Begin with the listed order and no bound, so that the program has to do the work."""

    def listed(net: Any, *_: object) -> Any:
        order = list(range(net.count))
        return module.OrderSolution(order=order, peak_memory=net.peak(order), lower_bound=0)

    module = sys.modules["memsched.arena.ilp.order"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "beam_order", lambda net, until: list(range(net.count)))
        patch.setattr(module, "probed_bound", lambda net, low, *_: low)
        for name in ("memsched.arena.ilp.order", "memsched.arena.ilp.joint"):
            patch.setattr(sys.modules[name], "probe", lambda net, *_: net.reach)
        if joint:
            patch.setattr(sys.modules["memsched.arena.ilp.joint"], "exact_order", listed)
        yield


# The oracles and the worked graphs.


@pytest.mark.parametrize("name", WORKED)
def test_worked_graphs(name: str) -> None:
    graph, listed, best = WORKED[name]
    assert peak_of(graph, range(len(graph.ops))) == listed
    assert best_order(graph)[0] == best
    found = order_ilp(graph)
    assert (peak_of(graph, found.order), found.lower_bound, found.optimal) == (best, best, True)
    both = joint_ilp(graph)
    assert (both.height + graph.resident, both.optimal) == (best, True)
    with no_shortcuts():
        assert order_ilp(graph).lower_bound == best


@settings(max_examples=40)
@given(with_kept(random_graphs(5)))
def test_the_dynamic_program_finds_the_best_of_all_orders(case: Case) -> None:
    graph, keep = case
    best, order = best_order(graph, keep)
    assert best == peak_of(graph, order, keep) == min(peak_of(graph, one, keep) for one in all_orders(graph))


# Orders.


@settings(max_examples=settings().max_examples)
@given(with_kept(st.one_of(random_graphs(8), graphs(max_layers=3))))
def test_orders_are_best(case: Case) -> None:
    graph, keep = case
    best, _ = best_order(graph, keep)
    for shortcuts in (True, False):
        if shortcuts:
            found = order_ilp(graph, keep=ids(graph, keep))
        else:
            with no_shortcuts():
                found = order_ilp(graph, keep=ids(graph, keep))
        assert found.optimal
        assert best == found.lower_bound == found.peak_memory == peak_of(graph, found.order, keep)


@settings(max_examples=30)
@given(with_kept(random_graphs(7)), st.booleans(), st.booleans())
def test_shortcuts_give_orders_and_honest_bounds(case: Case, compressed: bool, control_edges: bool) -> None:
    graph, keep = case
    found = order_ilp(graph, keep=ids(graph, keep), compressed=compressed, control_edges=control_edges)
    best, _ = best_order(graph, keep)
    assert found.lower_bound <= best <= found.peak_memory == peak_of(graph, found.order, keep)
    assert found.optimal == (found.lower_bound == found.peak_memory)


@settings(max_examples=30)
@given(random_graphs(7), st.sampled_from((512, 10**10 + 19)))
def test_large_sizes(graph: ms.Graph, factor: int) -> None:
    """With a common divisor they are small ones; with one odd byte they are not, and the gap stays within 10^-8."""
    best, _ = best_order(graph)
    with no_shortcuts():
        found = order_ilp(times(graph, factor))
        assert (found.peak_memory, found.lower_bound) == (best * factor, best * factor)
        odd = times(graph, factor).to_json()
        odd["tensors"].append({"name": "odd", "size": 1, "role": "activation"})
        odd["ops"][-1]["writes"].append("odd")
        found = order_ilp(ms.Graph.from_json(odd))
    best, _ = best_order(ms.Graph.from_json(odd))
    assert best * (1 - 1e-7) - 1 <= found.lower_bound <= best <= found.peak_memory <= best * (1 + 1e-7) + 1


@pytest.mark.parametrize("options", [{}, {"compressed": True}, {"control_edges": True}])
def test_no_time_gives_an_order(options: dict[str, bool]) -> None:
    with no_shortcuts():
        found = order_ilp(WORKED["pathological"].graph, time_limit=0.0, **options)
    assert found.peak_memory == peak_of(WORKED["pathological"].graph, found.order)
    assert found.lower_bound <= 9


def test_olla_runs_several_ops_in_a_step() -> None:
    """Its horizon is as long as the longest path: v2 and v3 of figure 3 share a step and run as they are listed."""
    assert order_ilp(FIGURE_3, compressed=True).peak_memory == 60


def test_control_edges() -> None:
    """Three layers: the update of the last goes before the first gradient of a weight on a level above its own."""
    graph = written(
        "F1 9 -> F2 W2; F2 9 -> F3 W3; F3 9 -> L; L 9 -> B3 W3; "
        "B3 9 -> B2 W2; B2 9 -> W1; W1 9 -> U1; W2 9 -> U2; W3 9 -> U3",
        ops="F1 F2 F3 L B3 B2 W1 W2 W3 U1 U2 U3",
        backward="L B3 B2 W1 W2 W3 U1 U2 U3",
    )
    names = [op["name"] for op in graph.ops]
    assert {names[k] for k in updates_of(graph)} == {"U1", "U2", "U3"}
    assert {(names[a], names[b]) for a, b in control_edges_of(graph)} == {("U3", "W1"), ("U2", "U1")}


@settings(max_examples=30)
@given(graphs(max_layers=6))
def test_control_edges_leave_an_order(graph: ms.Graph) -> None:
    found = order_ilp(graph, compressed=True, control_edges=True)
    place = {op: k for k, op in enumerate(found.order)}
    assert all(place[first] < place[second] for first, second in control_edges_of(graph))


# Addresses.

MINIMAL = [  # the load is 4
    Lived(start, end, size)
    for start, end, size in ((0, 3, 1), (0, 1, 3), (1, 4, 1), (1, 2, 2), (2, 5, 1), (3, 4, 2), (4, 5, 3))
]


def check_places(blocks: list[Lived], offsets: list[int]) -> int:
    """The height of a placement that is right."""
    pairs = list(zip(blocks, offsets, strict=True))
    for k, (one, at) in enumerate(pairs):
        assert at % one.alignment == 0
        assert one.offset in (None, at)
        assert at >= 0
        assert not any(one.size and other.size and overlaps(one, at, other, low) for other, low in pairs[:k])
    return max((at + one.size for one, at in pairs), default=0)


@st.composite
def drawn_blocks(draw: st.DrawFn) -> list[Lived]:
    drawn = []
    for k in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 4))
        alignment = draw(st.sampled_from((1, 1, 2, 4)))
        fixed = k < 2 and draw(st.integers(0, 3)) == 0
        offset = alignment * draw(st.integers(0, 3)) if fixed else None
        drawn.append(Lived(start, start + draw(st.integers(0, 3)), draw(st.integers(0, 9)), alignment, offset))
    return drawn


def test_an_instance_that_must_leave_a_gap() -> None:
    offsets, bound, optimal = place_ilp(MINIMAL)
    assert (check_places(MINIMAL, offsets), bound, optimal) == (5, 5, True)
    with pytest.raises(InfeasibleError, match="need at least 5 B, more than capacity, which is 4 B") as caught:
        place_ilp(MINIMAL, 4)
    assert caught.value.min_memory == 5
    assert place_ilp(MINIMAL, 5)[1] == 5
    large = [one._replace(size=one.size * (10**10 + 19)) for one in MINIMAL]
    assert place_ilp(large)[1] == 5 * (10**10 + 19)


@settings(max_examples=60)
@given(drawn_blocks())
def test_addresses_are_lowest(blocks: list[Lived]) -> None:
    try:
        offsets, bound, optimal = place_ilp(blocks)
    except InvalidInputError:
        assume(False)
    assert optimal
    assert check_places(blocks, offsets) == bound == least_height(blocks)


@pytest.mark.parametrize(
    "lives",
    [
        [
            (1, 2, 2952790016, 3),
            (1, 2, 3221225472, 2**29),
            (2, 3, 4563402752, 3 * 2**28),
            (1, 2, 1879048192, 3 * 2**28),
            (1, 6, 268435456, 2),
            (3, 6, 3758096384, 3 * 2**28),
            (5, 6, 3758096384, 2**29),
        ],
        [
            (1, 2, 93323264, 3),
            (1, 2, 772800512, 7 * 2**20),
            (0, 1, 982515712, 3 * 2**20),
            (1, 2, 601882624, 7 * 2**20),
            (0, 2, 688914432, 3 * 2**20),
            (1, 2, 289406976, 3 * 2**20),
        ],
    ],
)
def test_fine_alignments_of_large_buffers_prove_nothing_false(lives: list[tuple[int, int, int, int]]) -> None:
    buffers = [ms.Buffer(start, end, size, alignment=alignment) for start, end, size, alignment in lives]
    lowest = ms.place(buffers)
    assert lowest.optimal
    assert ms.place(buffers, method="ilp").lower_bound <= lowest.height


def test_fixed_blocks_that_cannot_be() -> None:
    with pytest.raises(InvalidInputError, match=r"buffers\[0\] and buffers\[1\] are alive together and their fixed"):
        place_ilp([Lived(0, 2, 5, 1, 0), Lived(1, 3, 2, 1, 4)])
    with pytest.raises(InvalidInputError, match=r"buffers\[0\]: offset is 6"):
        place_ilp([Lived(0, 2, 5, 4, 6)])


# Both.


@settings(max_examples=40)
@given(with_kept(random_graphs(5, 5)))
def test_both_are_least_together(case: Case) -> None:
    graph, keep = case
    free = [one for one in lived(graph, range(len(graph.ops)), keep) if one.size and one.offset is None]
    assume(len(free) <= 4)
    best = least_joint_height(graph, keep)
    check_joint(graph, keep, best)
    with no_shortcuts(joint=True):
        check_joint(graph, keep, best)


def check_joint(graph: ms.Graph, keep: frozenset[str], best: int) -> None:
    found = joint_ilp(graph, keep=ids(graph, keep))
    assert (found.height, found.lower_bound, found.optimal) == (best, best, True)
    blocks = lived(graph, found.order, keep)
    offsets = [found.offsets.get(k, blocks[k].offset or 0) for k in range(len(graph.tensors))]
    offsets += [found.workspaces.get(k, 0) for k in range(len(graph.ops))]
    assert check_places(blocks, offsets) == best


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    for call in (lambda: order_ilp(FIGURE_3), lambda: place_ilp([]), lambda: joint_ilp(FIGURE_3)):
        with pytest.raises(MemschedError, match=r"pip install 'memsched\[ilp\]'"):
            call()


# Larger graphs, against the search.


def large_graph(seed: int, count: int) -> ms.Graph:
    """Ops that read what some of the last ones wrote."""
    draw = random.Random(seed)
    tensors: list[dict[str, Any]] = [{"name": "x", "size": draw.randint(1, 20), "role": "input"}]
    ops = []
    for k in range(count):
        near = [tensor["name"] for tensor in tensors[-12:]]
        writes = [f"t{k}.{j}" for j in range(draw.choice((1, 1, 1, 2)))]
        workspace = draw.choice((0, 0, draw.randint(0, 20)))
        ops.append(
            {
                "name": f"o{k}",
                "phase": "fwd",
                "reads": draw.sample(near, min(len(near), draw.randint(1, 3))),
                "writes": writes,
                "choices": [{"alg": "default", "time": 1.0, "workspace": workspace}],
            }
        )
        tensors += [{"name": name, "size": draw.randint(0, 20), "role": "activation"} for name in writes]
    return ms.Graph(tensors, ops)


def test_whenever_time_runs_out_the_peak_is_that_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, left = large_graph(3, 15), 0

    def over(until: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TimeUpError

    for name in ("model", "net", "start"):
        monkeypatch.setattr(f"memsched.arena.ilp.{name}.check_time", over)
    listed, orders = peak_of(graph, range(15)), set()
    for looks in range(0, 900, 9):
        left = looks
        found = order_ilp(graph, time_limit=60.0)
        assert found.lower_bound <= found.peak_memory == peak_of(graph, found.order) <= listed
        orders.add(tuple(found.order))
    assert len(orders) > 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, *nightly(20, 30, 40)])
@pytest.mark.parametrize("seed", range(6))
def test_the_program_and_the_search_agree(seed: int, count: int) -> None:
    graph = large_graph(seed, count)
    found = order_ilp(graph, time_limit=60.0)
    exact = ms.order(graph, keep=())
    assert found.lower_bound <= exact.peak_memory
    if exact.optimal:
        assert exact.peak_memory <= found.peak_memory
    if found.optimal and exact.optimal:
        assert found.peak_memory == exact.peak_memory


@pytest.mark.slow
@settings(max_examples=2 * settings().max_examples)
@given(with_kept(st.one_of(random_graphs(9), graphs(max_layers=4))))
def test_the_search_finds_what_the_program_finds(case: Case) -> None:
    graph, keep = case
    exact = ms.order(graph, keep=keep)
    assert exact.optimal
    assert order_ilp(graph, keep=ids(graph, keep)).lower_bound == exact.peak_memory


@pytest.mark.parametrize(
    ("lives", "lowest"),
    [
        ("2 6 2, 4 7 7, 0 3 999983, 2 6 3531495, 2 5 846641, 6 10 999983, 6 7 720245, 5 9 999983", 5378121),
        (
            "2 5 6919223, 0 1 287277, 1 5 999983, 3 7 7330080, 4 5 999983, 0 4 266454, 2 5 999983, 6 10 8413729",
            17249252,
        ),
    ],
)
def test_the_program_cuts_off_nothing_that_fits(lives: str, lowest: int) -> None:
    """With bytes up to 1e6 and tolerances of 1e-9 HiGHS called higher placements optimal."""
    buffers = [ms.Buffer(*map(int, one.split())) for one in lives.split(", ")]
    placement = ms.place(buffers, method="ilp")
    assert placement.lower_bound <= ms.place(buffers).height == lowest


def test_integer_programs_print_nothing() -> None:
    """HiGHS 1.16 prints a banner of its own, into the JSON of the command line, too."""
    pytest.importorskip("highspy")
    code = """
from memsched.arena.ilp.model import Model
model = Model()
model.solve(time_limit=None, gap=0.0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
