"""Pictures of plans and of frontiers."""

from __future__ import annotations

import contextlib
import doctest
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.figure import Figure
from matplotlib.text import Text

import memsched as ms
from memsched.errors import visible
from memsched.show.plots import classes as classes_module
from memsched.show.plots import frontier as frontier_module
from memsched.show.plots import plan as module
from memsched.show.plots.frontier import least_memory, lower_bounds, plot_frontier
from memsched.show.plots.plan import memory_curve, plot
from memsched.testing import plans

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7, name="toy $1$_x")
RESULT = ms.greedy(CHAIN, 31, 2.0)
TOY = ms.Chain(
    [0, 4, 1],
    [1, 3, 3],
    [3, 4, 1, 3],
    [3, 4, 3, 2],
    forward_overhead=[2, 0, 2],
    backward_overhead=[0, 1, 2],
    name="toy",
)
POFO, ROTOR, GREEDY = (
    ms.frontier(TOY, 1.0, planner=name, memory=[13, 14, 15, 16, 17, 18]) for name in ("pofo", "rotor", "greedy")
)


def words(figure: Any) -> str:
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels()]
    for legend in figure.legends:
        texts += legend.get_texts()
    return " | ".join(text.get_text() for text in texts)


def test_the_examples_of_the_docstrings_hold() -> None:
    for tested in (module, frontier_module, classes_module):
        outcome = doctest.testmod(tested)
        assert outcome.attempted > 0
        assert outcome.failed == 0


def test_the_picture_says_what_it_shows() -> None:
    shown = words(plot(RESULT))
    for word in ("greedy on toy $1$_x", "makespan 18 s", "lower bound 10.5 s", "gap 71.43 %", "time (s)"):
        assert word in shown
    for word in ("compute", "device to host", "host to device", "memory (bytes)", "budget 31 B", "resident"):
        assert word in shown
    for word in ("forward", "backward", "offload", "prefetch", "F2", "tape1"):
        assert word in shown
    assert "recompute" not in shown


def test_recomputation_has_its_own_colour() -> None:
    plan = ms.greedy(CHAIN, 100, 2.0).schedule.to_json()
    at = plan["steps"].index({"run": "F2"})
    plan["steps"][at + 1 : at + 1] = [{"free": "a1"}, {"free": "tape1"}, {"run": "F1"}]
    schedule = ms.Schedule.from_json(plan)
    device = ms.Device(100)
    again = replace(
        RESULT, schedule=schedule, device=device, timeline=ms.simulate(CHAIN, schedule, device), lower_bound=0.0
    )
    assert "recompute" in words(plot(again))


@pytest.mark.parametrize("draw", [partial(plot, RESULT), partial(plot_frontier, POFO)], ids=["plan", "frontier"])
@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_ending_says_the_format_and_the_file_is_the_same_each_time(
    tmp_path: Path, suffix: str, magic: bytes, draw: Any
) -> None:
    draw(tmp_path / f"a{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert content.startswith(magic)
    if suffix == ".svg":
        assert ET.fromstring(content).tag.endswith("svg")
    assert [path.name for path in tmp_path.iterdir()] == [f"a{suffix}"]


def test_bad_paths_leave_nothing(tmp_path: Path) -> None:
    for bad in ("a.txt", "a", "none/a.png"):
        for draw in (partial(plot, RESULT), partial(plot_frontier, POFO)):
            with pytest.raises(ms.InvalidInputError, match=r"png|written"):
                draw(tmp_path / bad)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))]:
        monkeypatch.setitem(sys.modules, name, None)
    for draw in (partial(plot, RESULT), partial(plot_frontier, POFO)):
        with pytest.raises(ms.MemschedError, match=r"memsched\[plot\]"):
            draw()


@given(case=plans.schedules())
@settings(max_examples=50)
def test_the_curve_keeps_the_peak_and_every_level_that_lasts(
    case: tuple[Any, ms.Schedule, ms.Device],
) -> None:
    problem, schedule, device = case
    timeline = ms.simulate(problem, schedule, device)
    result = replace(RESULT, problem=problem, schedule=schedule, device=device, timeline=timeline, lower_bound=0.0)
    times, counts = memory_curve(result)
    given_times, given_counts = timeline.memory
    assert (np.diff(times) >= 0).all()
    assert counts.max() == max(given_counts)
    lasts = np.flatnonzero(np.diff(given_times, append=np.inf))
    drawn = np.flatnonzero(np.diff(times, append=np.inf))
    assert times[drawn].tolist() == [given_times[index] for index in lasts]
    assert counts[drawn].tolist() == [given_counts[index] for index in lasts]


def test_a_plan_that_takes_no_time_can_be_drawn() -> None:
    chain = ms.Chain([0, 0], [0, 0], [4, 4, 4], [0, 4, 4])
    assert "makespan 0 s" in words(plot(ms.greedy(chain, 100, 1.0)))


def test_a_budget_far_above_the_peak_does_not_flatten_the_curve() -> None:
    figure = plot(ms.greedy(CHAIN, 10**6, 2.0))
    assert "(off the scale)" in words(figure)
    assert figure.axes[1].get_ylim()[1] < 50
    assert levels(figure) == []
    near = plot(RESULT)
    assert "(off the scale)" not in words(near)
    assert levels(near) == [31]


def levels(figure: Any) -> list[float]:
    """Where the picture of memory has a line from side to side."""
    lines = [np.asarray(line.get_ydata(), float) for line in figure.axes[1].get_lines()]
    return [float(heights[0]) for heights in lines if len(heights) == 2 and heights[0] == heights[1]]


def curve(figure: Any, label: str) -> list[tuple[float, float]]:
    """The points of the line with this label."""
    line = next(line for line in figure.axes[0].get_lines() if line.get_label() == label)
    return list(zip(*(np.asarray(data, float).tolist() for data in line.get_data()), strict=True))


def test_a_frontier_shows_every_plan_and_nothing_where_there_is_none() -> None:
    figure = plot_frontier([POFO, ROTOR, GREEDY])
    shown = words(figure)
    for word in ("toy", "3 stages, link 1 B/s", "memory (bytes)", "makespan (s)", "pofo", "rotor", "greedy"):
        assert word in shown
    for word in ("ideal 12 s", "peak of the plain run 18 B", "least memory with a plan, by colour"):
        assert word in shown
    for one in (POFO, ROTOR, GREEDY):
        planned = [(memory, best) for memory, best in zip(one.memory, one.makespan, strict=True) if np.isfinite(best)]
        assert curve(figure, one.planner) == planned
    assert curve(figure, "rotor") == [(16, 16), (17, 16), (18, 12)]
    # as an exhaustive search over all plans finds
    assert curve(figure, "lower bound of all plans with whole tensors") == [
        (14, 15),
        (15, 15),
        (16, 12),
        (17, 12),
        (18, 12),
    ]
    assert curve(figure, "lower bound of plans without recomputation") == [
        (14, 15),
        (15, 13),
        (16, 12),
        (17, 12),
        (18, 12),
    ]
    marks = [line for line in figure.axes[0].get_lines() if line.get_marker() == (3, 0, 0)]
    assert [line.get_xdata()[0] for line in marks] == [14, 16, 14]
    heights = [line.get_ydata()[0] for line in marks]
    assert heights[0] == heights[1] < heights[2]  # the third would hide the first
    (second,) = figure.axes[0].child_axes
    assert second.get_ylabel() == "over the ideal (%)"


def test_every_point_and_line_of_a_frontier_is_inside() -> None:
    for curves in ([POFO, ROTOR, GREEDY], [ROTOR]):
        figure = plot_frontier(curves)
        (x0, x1), (y0, y1) = figure.axes[0].get_xlim(), figure.axes[0].get_ylim()
        for one in curves:
            for x, y in curve(figure, one.planner):
                assert x0 < x < x1
                assert y0 < y < y1
        assert x0 < 18 < x1
        assert y0 < 12 < y1
        legend = figure.legends[0].get_window_extent()
        assert legend.y1 < figure.axes[0].get_tightbbox().y0
        assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


def test_the_minimum_of_a_planner_is_known_also_without_a_link() -> None:
    assert [least_memory(one) for one in (POFO, ROTOR, GREEDY)] == [14, 16, 14]
    unlinked = [ms.frontier(TOY, 0.0, planner=name, memory=[14, 16, 18]) for name in ("pofo", "greedy")]
    assert [least_memory(one) for one in unlinked] == [16, 18]
    assert "no link" in words(plot_frontier(unlinked))
    assert least_memory(ms.frontier(TOY, 1.0, planner="greedy", memory=[15, 18])) is None
    assert least_memory(ms.frontier(TOY, 1.0, planner="rotor", memory=[15])) is None


def test_the_minimum_of_tflms_is_that_of_its_pieces() -> None:
    """In pieces it was marked at 39 bytes, right of the first plan."""
    chain = ms.Chain([2, 2, 1, 1], [1, 1, 1, 1], [9, 9, 5, 7, 9], [9, 9, 5, 7, 9])
    for chunk, least in ((None, 39), (1, 37)):
        curve = ms.frontier(chain, 1.0, planner="tflms", memory=range(30, 50), chunk=chunk)
        assert least_memory(curve) == curve.memory[np.isfinite(curve.makespan)][0] == least


def test_a_frontier_without_plans_or_of_one_point_or_of_no_time_can_be_drawn() -> None:
    assert "rotor (no plan)" in words(plot_frontier(ms.frontier(TOY, 1.0, planner="rotor", memory=[15])))
    one = plot_frontier(ms.frontier(TOY, 1.0, planner="greedy", memory=[15]))
    assert curve(one, "lower bound of plans without recomputation") == [(15, 13)]
    chain = ms.Chain([0, 0], [0, 0], [4, 4, 4], [0, 4, 4])
    assert "ideal 0 s" in words(plot_frontier(ms.frontier(chain, 1.0, planner="greedy", points=3)))
    far = plot_frontier(ms.frontier(TOY, 1.0, planner="greedy", memory=[10**6]))
    assert "peak of the plain run" not in words(far)


@pytest.mark.parametrize("beta", [1.0, float("inf")])
def test_times_near_the_least_that_there_is_can_be_drawn(beta: float) -> None:
    """Their ratios are infinite, for which matplotlib has no axis."""
    chain = ms.Chain([5e-324, 0], [0, 0], [1, 1, 1], [0, 1, 0])
    assert "over the ideal" not in words(plot_frontier(ms.frontier(chain, beta, points=4)))
    result = ms.greedy(chain, 3, beta)
    assert words(plot(result))
    assert words(ms.plot_addresses(ms.with_addresses(result)))


def test_a_bound_of_several_planners_holds_for_each() -> None:
    offload = ms.frontier(TOY, 1.0, planner="offload", memory=[14, 15], time_limit=0.0)
    assert lower_bounds([offload])[False] == [(14, 15.0), (15, 15.0)]  # the larger of two
    assert lower_bounds([GREEDY, offload])[False][:2] == [(14, 15.0), (15, 13.0)]


def test_frontiers_that_do_not_belong_together_are_refused() -> None:
    other = ms.frontier(CHAIN, 1.0, planner="greedy", points=2)
    faster = ms.frontier(TOY, 2.0, planner="greedy", points=2)
    for bad, said in (([], "not empty"), ([CHAIN], "Frontier"), ([POFO, other], "problem"), ([POFO, faster], "link")):
        with pytest.raises(ms.InvalidInputError, match=said):
            plot_frontier(bad)


INTERRUPTED = """
import signal
import sys

import memsched as ms

class Once:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Once())
result = ms.greedy(ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4]), 28, 1.0)
try:
    ms.plot(result, sys.argv[2])
except KeyboardInterrupt:
    ms.plot(result, sys.argv[2])
"""


def test_an_interrupt_while_matplotlib_is_imported_spoils_no_later_plot(tmp_path: Path) -> None:
    """What was imported by half could not be imported again."""
    path = tmp_path / "plan.svg"
    subprocess.run([sys.executable, "-c", INTERRUPTED, "matplotlib.artist", str(path)], check=True)
    assert path.exists()


def test_ctrl_c_that_matplotlib_drops_ends_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what a callback of a weak reference raises; matplotlib has many, also before it writes the file."""
    plain = Figure.subplots

    def subplots(self: Figure, *args: Any, **named: Any) -> Any:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return plain(self, *args, **named)

    monkeypatch.setattr(Figure, "subplots", subplots)
    with pytest.raises(KeyboardInterrupt):
        ms.plot(RESULT, tmp_path / "plan.svg")


@pytest.mark.parametrize("name", ["\x0c", "$\\bad$", "$x_1$", "a\x1b[2J", "\ufffe"])
def test_names_are_shown_as_they_are_written(name: str, tmp_path: Path) -> None:
    """Between dollars they were formulas, and control characters made files that no browser opens."""
    ways = [{"alg": "a", "time": 1, "workspace": 1}]
    ops = [
        {"name": f"F{name}", "phase": "fwd", "kind": name, "reads": [], "writes": [f"t{name}"], "choices": ways},
        {"name": "B", "phase": "bwd", "reads": [f"t{name}"], "writes": [], "choices": ways},
    ]
    graph = ms.Graph([{"name": f"t{name}", "size": 3, "role": "activation"}], ops, name=name)
    chain = ms.Chain([1, 2], [1, 1], [4, 4, 3], [0, 4, 2], name=name, names=[name, f"{name}2"])
    result, rows = ms.selective(graph, 20, 1.0), ms.sweep(chain, ["greedy"], memory=[22], beta=[2.0]).rows
    drawn = [
        ms.plot(ms.greedy(chain, 22, 2.0), tmp_path / "plan.svg"),
        ms.plot_classes(result, tmp_path / "classes.svg", by="kind"),
        ms.plot_addresses(ms.with_addresses(result), tmp_path / "addresses.svg"),
        ms.plot_frontier(ms.frontier(chain, 2.0, points=3), tmp_path / "frontier.svg"),
        ms.plot_sweep([row | {"planner": name} for row in rows], tmp_path / "sweep.svg"),
    ]
    for path in tmp_path.glob("*.svg"):
        ET.parse(path)
    shown = [text.get_text() for figure in drawn for text in figure.findobj(Text)]
    assert sum(visible(name) in text for text in shown) >= len(drawn)


def test_the_legend_of_frontiers_is_within_the_picture() -> None:
    """Words about bounds had become too long for four columns."""
    chain = ms.profiles.load("resnet50-224-b32")
    family = ms.profiles.analytic("vgg16", 64, "k40m")
    drawn = [
        [ms.frontier(chain, beta=12e9, planner=name, points=3) for name in ("rotor", "dynprog")],
        [ms.frontier(family, beta=1e10, planner=name, points=3) for name in ("modnn", "selective", "by_kind")],
    ]
    for frontiers in drawn:
        figure = ms.plot_frontier(frontiers)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


class Holder:
    """What has a result, as a plan of memsched.torch."""

    def __init__(self, result: ms.Result) -> None:
        self.result = result


def test_what_has_a_result_is_drawn_as_its_result(tmp_path: Path) -> None:
    held = Holder(RESULT)
    for function in (ms.plot, ms.plot_classes, ms.plot_addresses):
        function(RESULT, tmp_path / "a.svg")
        function(held, tmp_path / "b.svg")
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert ms.trace(held) == ms.trace(RESULT)
    assert len(ms.plot_classes([held, RESULT]).axes) == 2
    with pytest.raises(ms.InvalidInputError, match="it must be a Result"):
        ms.plot(Holder)  # type: ignore[arg-type]  # wrong on purpose


def test_plans_of_one_planner_become_a_curve() -> None:
    curve_of = ms.frontier(TOY, 1.0, planner="greedy", memory=[14, 16, 18])
    plans = [Holder(one) for one in curve_of.results if one is not None]
    whole, single = plot_frontier(curve_of), plot_frontier(plans)
    assert curve(single, "greedy") == curve(whole, "greedy")
    assert len(curve(single, "greedy")) == len(plans) > 1
    both = plot_frontier([*plans, ROTOR])
    assert {"greedy", "rotor"} <= {line.get_label() for line in both.axes[0].get_lines()}
    assert curve(plot_frontier(plans[0]), "greedy") == curve(whole, "greedy")[:1]
    with pytest.raises(ms.InvalidInputError, match="links differ"):
        plot_frontier([plans[0], ms.rotor(TOY, 18)])


def test_a_planner_above_one_that_it_includes_is_explained() -> None:
    """pofo may plan as greedy does."""
    greedy = ms.frontier(TOY, 1.0, planner="greedy", memory=[14, 18])
    slow = replace(greedy, planner="pofo", results=(None, greedy.results[0]))
    assert "pofo lies above greedy at some memories: it may make the same plans" in words(plot_frontier([slow, greedy]))
    assert "lies above" not in words(plot_frontier([replace(slow, planner="rotor"), greedy]))
    assert "lies above" not in words(plot_frontier([POFO, ROTOR]))


def test_a_backend_that_matplotlib_does_not_know_is_told(tmp_path: Path) -> None:
    code = "import memsched as ms; ms.greedy(ms.Chain([1], [1], [4, 4]), 20, 1).plot('a.png')"
    environment = {**os.environ, "MPLBACKEND": "Qt4Agg"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "MemschedError: matplotlib.backends.backend_agg is installed but cannot be imported: " in done.stderr
    assert "'Qt4Agg'" in done.stderr.splitlines()[-1]
