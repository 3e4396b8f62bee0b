"""Pictures of arenas."""

from __future__ import annotations

import doctest
import re
import string
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched import Buffer
from memsched.show.hover import overlay
from memsched.show.plots import addresses as module
from memsched.show.plots.addresses import plot_addresses
from memsched.show.report.tensors import tensor_uses

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7, name="toy $1$_x")
BUFFERS = [Buffer(5, 7, 3, name="a"), Buffer(6, 8, 4, name="b"), Buffer(7, 9, 3), Buffer(6, 6, 9), Buffer(5, 9, 0)]


def plain() -> ms.Result:
    return ms.greedy(CHAIN, 31, 2.0)


def words(figure: Any) -> str:
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, axes._left_title]
    for legend in figure.legends:
        texts += legend.get_texts()
    return " | ".join(text.get_text() for text in texts)


def boxes(axes: Any) -> list[tuple[float, float, float, float]]:
    """Left, low, right and high of the rectangles."""
    found = [path.get_extents() for path in axes.collections[0].get_paths()]
    return [(box.x0, box.y0, box.x1, box.y1) for box in found]


def overlaps(found: list[tuple[float, float, float, float]]) -> bool:
    left, low, right, high = (np.array(column)[:, None] for column in zip(*found, strict=True))
    small = 1e-9
    meet = (left + small < right.T) & (left.T + small < right) & (low + small < high.T) & (low.T + small < high)
    np.fill_diagonal(meet, False)
    return bool(meet.any())


def test_the_example_of_the_docstring_holds() -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_a_placement_is_drawn_as_it_is() -> None:
    placement = ms.place(BUFFERS)
    figure = plot_addresses(placement)
    axes = figure.axes[0]
    drawn = sorted((left, right, high - low) for left, low, right, high in boxes(axes))
    assert drawn == [(5, 7, 3), (6, 8, 4), (7, 9, 3)]
    assert not overlaps(boxes(axes))
    assert axes.get_xlim() == (5, 9)
    load = axes.lines[0]
    assert load.get_ydata().tolist() == [3, 7, 7, 3, 0]
    shown = words(figure)
    for word in (
        "addresses of 5 buffers",
        "placed by search",
        "height 9 B, proven lowest; fragmentation",
        "address (bytes)",
        "| b |",
    ):
        assert word in f"{shown} |"
    assert "capacity" not in shown


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(0, 6)), max_size=8))
def test_rectangles_never_overlap(entries: list[tuple[int, int, int]]) -> None:
    placement = ms.place([Buffer(start, start + length, size) for start, length, size in entries], time_limit=0.1)
    found = boxes(plot_addresses(placement).axes[0])
    assert len(found) == sum(size > 0 for *_, size in entries)
    assert not found or not overlaps(found)
    assert max((high for *_, high in found), default=0) == placement.height


def test_a_result_tells_roles_budget_and_seconds() -> None:
    graph = ms.profiles.load_graph("vgg16-224-b32")
    result = ms.olla(graph, M=ms.peak_memory(graph))
    figure = plot_addresses(result)
    shown = words(figure)
    for word in (
        "addresses of vgg16-224-b32",
        "olla",
        "time (ms)",
        "address (GiB)",
        "capacity 2.68 GiB",
        "load",
        "height",
    ):
        assert word in shown
    for role in ("activation", "gradient", "input"):
        assert role in shown
    assert "weight" not in shown
    assert "features.0/convolution+relu_:0" in shown
    assert not overlaps(boxes(figure.axes[0]))
    assert figure.axes[0].get_xlim()[1] == pytest.approx(1000 * result.makespan)


def test_a_plan_without_addresses_is_given_some() -> None:
    figure = plot_addresses(plain())
    shown = words(figure)
    for word in ("toy $1$_x", "ops, in the order of the plan", "capacity 24 B", "activation"):
        assert word in shown
    assert not overlaps(boxes(figure.axes[0]))
    assert figure.axes[0].get_xlim() == (0, 5)
    placed = ms.with_addresses(plain())
    assert "time (s)" in words(plot_addresses(placed))
    assert boxes(plot_addresses(replace(placed, placement=None)).axes[0]) == boxes(plot_addresses(placed).axes[0])


def test_a_plan_in_rounds() -> None:
    rounds = ms.modnn(ms.profiles.analytic("vgg16", 256, "k40m"), 8 * 2**30, 10e9)
    figure = plot_addresses(rounds)
    assert "modnn, the first of 4 rounds" in words(figure)
    assert "workspace" in words(figure)
    assert not overlaps(boxes(figure.axes[0]))
    assert figure.axes[0].get_xlim()[1] < rounds.makespan


def test_a_name_is_written_in_its_rectangle() -> None:
    large = [Buffer(0, 2, 3 << 20, name="long"), Buffer(1, 3, 5 << 20, name="wide"), Buffer(0, 1, 4 << 20, name="low")]
    placement = ms.place(large)
    axes = plot_addresses(placement).axes[0]
    at = {text.get_text(): text.get_position() for text in axes.texts}
    assert sorted(at) == ["long", "low", "wide"]
    for buffer, offset in zip(placement.buffers, placement.offsets, strict=True):
        x, y = at[str(buffer.name)]
        assert buffer.start < x < buffer.end
        assert offset < (y * 2**20) < offset + buffer.size


def test_rounds_of_several_batches_share_the_arena_of_the_largest() -> None:
    def make(batch: int) -> ms.Graph:
        tensors = [{"name": name, "size": size * batch, "role": "activation"} for name, size in (("a", 4), ("b", 3))]
        choices = [{"alg": "one", "time": batch, "workspace": 0}]
        ops = [
            {"name": "F", "phase": "fwd", "reads": [], "writes": ["a"], "choices": choices},
            {"name": "B", "phase": "bwd", "reads": ["a"], "writes": ["b"], "choices": choices},
        ]
        return ms.Graph(tensors, ops, resident=10 * batch, name="grows", batch=batch)

    family, device = ms.GraphFamily(make, 5), ms.Device(1000, 2.0)
    schedule = ms.Schedule([{"run": "F"}, {"run": "B"}], budget=100, graph="grows", rounds=[(2, 1), (3, 1)])
    result = replace(
        ms.vdnn_sync(family, device=device),
        device=device,
        schedule=schedule,
        timeline=ms.simulate(family, schedule, device),
        placement=None,
        lower_bound=0.0,
    )
    assert "capacity 70 B" in words(plot_addresses(result))  # of 100 bytes, less 10 for each of a batch of 3


def test_several_share_a_scale_and_a_far_capacity_is_off_it() -> None:
    placed = ms.with_addresses(plain())
    far = replace(placed, device=ms.Device(31, bandwidth=2.0))
    wide = ms.olla(ms.to_graph(CHAIN), M=10**6)
    figure = plot_addresses([placed, far, wide, ms.place([])])
    assert len(figure.axes) == 4
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert "capacity of each" in words(figure)
    assert "capacity 1.00 MB (off the scale)" in words(plot_addresses(wide))
    assert len(plot_addresses([placed] * 3).axes) == 3


def test_panels_that_are_compared_have_the_same_axes() -> None:
    early, late = ms.place([Buffer(-3, 1, 4, name="a")]), ms.place([Buffer(0, 9, 2**20, name="b")])
    figure = plot_addresses([early, late])
    assert {axes.get_xlim() for axes in figure.axes} == {(-3, 9)}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    slow = ms.Chain([1e3, 2e3], [2e3, 3e3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    fast = ms.Chain([1e-3, 2e-3], [2e-3, 3e-3], [4, 6, 5], [0, 6, 5], saved=[9, 5])
    figure = plot_addresses([ms.with_addresses(ms.greedy(one, "100%", 2.0)) for one in (slow, fast)])
    assert [axes.get_xlabel() for axes in figure.axes] == ["time (s)", "time (s)"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_names_are_inside_their_buffers_and_the_picture_says_how_many_there_are() -> None:
    """At 333 buffers there were 12 at most, and no word of it."""
    buffers = [Buffer(k // 4, k // 4 + 9 + k % 7, (1 + k % 5) << 20, name=f"layer{k}.weight") for k in range(333)]
    placement = ms.place(buffers, method="greedy")
    figure = plot_addresses(placement)
    (axes,) = figure.axes
    assert f"{len(axes.texts)} of 333 buffers named" in words(figure)
    assert len(axes.texts) > 30
    assert figure.get_figheight() > plot_addresses(ms.place(BUFFERS)).get_figheight()
    assert "named" not in words(plot_addresses(ms.place([Buffer(0, 1, 1, name="a")])))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [""]  # what is told stands at the head, as elsewhere
    figure.draw_without_rendering()
    rectangles = [axes.transData.transform_path(path).get_extents() for path in axes.collections[0].get_paths()]
    for text in axes.texts:
        box, (x, y) = text.get_window_extent(), axes.transData.transform(text.get_position())
        (around,) = [one for one in rectangles if one.x0 < x < one.x1 and one.y0 < y < one.y1]
        assert around.x0 - 1 <= box.x0 <= box.x1 <= around.x1 + 1, text.get_text()
        assert around.y0 - 1 <= box.y0 <= box.y1 <= around.y1 + 1, text.get_text()


def test_a_shortened_name_stands_for_one_buffer() -> None:
    alike = [Buffer(10 * k, 10 * k + 1, 2**20, name=f"features.{'a' * 40}{k}{'b' * 40}.weight") for k in range(2)]
    wide = Buffer(0, 10, 2**20, name="wide")
    shown = [text.get_text() for text in plot_addresses(ms.place([*alike, wide])).axes[0].texts]
    assert shown == ["wide"]
    shown = [text.get_text() for text in plot_addresses(ms.place([alike[0], wide])).axes[0].texts]
    assert shown == ["wide", "features.aaa…bbbb.weight"]


@pytest.mark.parametrize("first", [2**53, 2**52, -(2**60), 10**30])
def test_moments_that_hardly_differ_as_floats_are_drawn_from_the_first(first: int) -> None:
    placement = ms.place([Buffer(first, first + 1, 3, name="a"), Buffer(first + 1, first + 3, 4, name="b")])
    figure = plot_addresses(placement)
    axes = figure.axes[0]
    assert axes.get_xlim() == (0, 3)
    assert sorted((left, right) for left, _, right, _ in boxes(axes)) == [(0, 1), (1, 3)]
    assert f"time since {first}, as in start and end of the buffers" in words(figure)
    drawn, _ = overlay(figure, placement, 10_000)
    lefts, widths = ([float(one) for one in re.findall(rf' {key}="(.*?)"', drawn)] for key in ("x", "width"))
    (near, wide), (far, wider) = sorted(zip(lefts, widths, strict=True))
    assert far == pytest.approx(near + wide, rel=1e-3)
    assert wider == pytest.approx(2 * wide, rel=1e-3)


def test_a_late_buffer_that_is_never_alive_is_drawn() -> None:
    figure = plot_addresses(ms.place([Buffer(2**53, 2**53, 1)]))
    assert np.diff(figure.axes[0].get_xlim()) > 0


def test_nothing_and_much_are_drawn(tmp_path: Path) -> None:
    assert "height 0 B" in words(plot_addresses(ms.place([]), tmp_path / "none.svg"))
    assert plot_addresses(ms.place([Buffer(-4.5, -2, 1)])).axes[0].get_xlim() == (-4.5, -2)
    many = [Buffer(k % 997, k % 997 + 1 + k % 31, 1 + k % 64, name=f"b{k}") for k in range(5000)]
    figure = plot_addresses(ms.place(many, method="greedy", time_limit=0.1), tmp_path / "many.png")
    assert len(figure.axes[0].collections) == 1
    assert len(figure.axes[0].texts) <= 100
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_bad_input(tmp_path: Path) -> None:
    for arenas in ([], [plain()] * 7):
        with pytest.raises(ms.InvalidInputError, match="arenas are"):
            plot_addresses(arenas)
    with pytest.raises(ms.InvalidInputError, match="arenas has a Buffer"):
        plot_addresses(BUFFERS)  # type: ignore[arg-type]
    for path in ("a.gif", "none/a.png"):
        with pytest.raises(ms.InvalidInputError, match=r"png|written"):
            plot_addresses(plain(), tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_what_the_backward_writes_is_a_gradient_and_a_workspace_that_is_not_seen_has_no_entry() -> None:
    """Captured steps call all but the gradients of weights activations."""

    def op(name: str, phase: str, reads: str, writes: str, workspace: int) -> dict[str, Any]:
        choices = [{"alg": "plain", "time": 1.0, "workspace": workspace}]
        return {
            **{"name": name, "phase": phase, "kind": "matmul", "reads": [*reads], "writes": [*writes]},
            "choices": choices,
        }

    names = "xad" + string.ascii_uppercase + string.digits
    for workspace in (4, 2**30):
        graph = ms.Graph(
            tensors=[{"name": name, "size": 2**30, "role": "input" if name == "x" else "activation"} for name in names],
            ops=[
                op("f", "fwd", names[0], names[1], workspace),
                *(op(f"b{after}", "bwd", before, after, 0) for before, after in pairwise(names[1:])),
            ],
        )
        figure = plot_addresses(ms.olla(graph, M=ms.peak_memory(graph)))
        (legend,) = figure.legends
        named = {text.get_text() for text in legend.get_texts()}
        assert {"activation", "gradient"} <= named
        assert ("workspace" in named) == (workspace > 4)
        assert {use.name: use.role for use in tensor_uses(ms.olla(graph, M=ms.peak_memory(graph)))}["d"] == "gradient"
