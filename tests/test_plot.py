"""Pictures of plans."""

from __future__ import annotations

import builtins
import doctest
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import memsched as ms
from memsched import plot as module
from memsched.plot import memory_curve, plot
from memsched.testing import plans

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], resident=7, name="toy $1$_x")
RESULT = ms.greedy(CHAIN, 31, 2.0)


def words(figure: Any) -> str:
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += [*axes.texts, axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels()]
    for legend in figure.legends:
        texts += legend.get_texts()
    return " | ".join(text.get_text() for text in texts)


def test_the_examples_of_the_docstrings_hold() -> None:
    outcome = doctest.testmod(module)
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


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_the_ending_says_the_format_and_the_file_is_the_same_each_time(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    plot(RESULT, tmp_path / f"a{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert content.startswith(magic)
    if suffix == ".svg":
        assert ET.fromstring(content).tag.endswith("svg")
    assert [path.name for path in tmp_path.iterdir()] == [f"a{suffix}"]


def test_bad_paths_leave_nothing(tmp_path: Path) -> None:
    for bad in ("a.txt", "a", "none/a.png"):
        with pytest.raises(ms.InvalidInputError, match=r"png|written"):
            plot(RESULT, tmp_path / bad)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ms.MemschedError, match=r"memsched\[cli\]"):
        plot(RESULT)


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
