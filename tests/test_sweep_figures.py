"""Points that a planner plans many at a time: the rows of the planner called one by one, bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.show.words import kinds_of_gaps
from memsched.study.sweep import work
from memsched.study.sweep.points import group, swept_problem
from memsched.support.documents import write_device
from memsched.testing import chains

CHAIN = "resnet18-224-b32"
FIGURED = [name for name, known in PLANNERS.items() if known.figures is not None]


@contextmanager
def one_by_one() -> Iterator[None]:
    """Without what plans many points at once."""
    before = dict(PLANNERS)
    PLANNERS.update({name: replace(known, figures=None) for name, known in before.items()})
    try:
        yield
    finally:
        PLANNERS.update(before)


def same(found: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> bool:
    """But for when, and for how long; -0.0 is not 0.0."""
    left_out = ("runtime", "finished")
    rows = ([{name: repr(value) for name, value in row.items() if name not in left_out} for row in some]
            for some in (found, alone))  # fmt: skip
    return next(rows) == next(rows)


def swept(problem: Any, planner: str, **more: Any) -> list[dict[str, Any]]:
    return ms.sweep(problem, [planner], **more).rows


def test_greedy_and_dynprog_plan_many_at_once() -> None:
    assert FIGURED == ["dynprog", "greedy"]


@pytest.mark.parametrize("options", [{"time_limit": 0.5}, {"method": "hash"}])
def test_options_that_need_the_planner_itself(options: dict[str, Any]) -> None:
    figures = PLANNERS["dynprog"].figures
    assert figures is not None
    chain = ms.profiles.load(CHAIN)
    assert figures(chain, slots=10) is not None
    assert figures(chain, **options) is None


LINKS = st.sampled_from([0.0, 5e-324, 1e-3, 0.5, 1.0, 3.0, 7.3, 1e3, math.inf])
OPTIONS: dict[str, Any] = {
    "greedy": st.fixed_dictionaries({}, optional={"chunk": st.integers(1, 9)}),
    "dynprog": st.fixed_dictionaries(
        {"slots": st.one_of(st.none(), st.integers(1, 700))},
        optional={
            "chunk": st.integers(1, 9),
            "ties": st.sampled_from(["paper", "simulate"]),
            "max_rounds": st.integers(1, 4),
            "gap": st.sampled_from([0.0, 0.1]),
            "max_states": st.sampled_from([1000, 5000]),
        },
    ),
}


@settings(deadline=None)
@given(
    chains(max_stages=9),
    st.sampled_from(FIGURED),
    st.data(),
    st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=6),
    st.lists(LINKS, min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.sampled_from([0.0, 0.25]),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_rows_are_those_of_the_planner_called_one_by_one(
    chain: ms.Chain,
    planner: str,
    data: st.DataObject,
    shares: list[float],
    beta: list[float],
    duplex: bool,
    latency: float,
    host: int | None,
) -> None:
    low, high = ms.min_memory(chain), ms.peak_memory(chain)
    memory = [max(1, round(low + share * (high - low)) + (share < 0) * -1) for share in shares]
    more: dict[str, Any] = {
        "memory": memory,
        "beta": beta,
        "options": {planner: data.draw(OPTIONS[planner])},
        "device": ms.Device(1, duplex=duplex, latency=latency, host_memory=host),
        "jobs": 1,
    }
    found = swept(chain, planner, **more)
    with one_by_one():
        assert same(found, swept(chain, planner, **more))


@pytest.mark.parametrize("planner", FIGURED)
@pytest.mark.parametrize("name", ["densenet121-224-b32", "vgg16-224-b32", "gpt2-1024-b8"])
def test_rows_of_profiles_are_those_of_the_planner_called_one_by_one(name: str, planner: str, tmp_path: Any) -> None:
    more: dict[str, Any] = {
        "memory": ["0.01%", "3%", "17%", "40%", "71%", "99.9%", "120%", 10**6],
        "beta": [0.0, 3e9, 12.2e9, "inf"],
    }
    kept = swept(name, planner, **more, store=tmp_path / "a.sqlite")
    found = swept(name, planner, **more)
    with one_by_one():
        alone = swept(name, planner, **more)
    assert {row["status"] for row in alone} == {"planned", "infeasible"}
    assert same(found, alone)
    assert same(kept, alone)


def test_options_that_only_a_call_alone_takes_are_planned_alone() -> None:
    """The paper's algorithm, and a time limit: each point has its own."""
    for options in ({"method": "hash", "slots": 20}, {"time_limit": 5.0}, {"slots": 0}, {"method": "no"}):
        more: dict[str, Any] = {"memory": ["30%", "60%"], "beta": [12e9], "options": {"dynprog": options}}
        found = swept(CHAIN, "dynprog", **more)
        with one_by_one():
            assert same(found, swept(CHAIN, "dynprog", **more))


def test_keys_are_hashes_of_all_that_a_point_depends_on() -> None:
    problem = swept_problem(ms.profiles.load(CHAIN))
    devices = [
        ms.Device(10**9 + k, d2h=8e9 + (k > 1), h2d=math.inf, duplex=True, latency=1e-6 * (k > 2), host_memory=5)
        for k in range(5)
    ]
    keys = group(problem, "dynprog", {"slots": 7}, None, devices, "1").keys
    shared = {"problem": problem.key, "planner": "dynprog", "options": {"slots": 7}, "version": "1", "table": None}
    texts = [json.dumps({**shared, "device": {**write_device(one), "name": None}}, sort_keys=True) for one in devices]
    assert list(keys) == [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]


@pytest.mark.parametrize("planner", FIGURED)
def test_a_stop_hands_over_what_is_finished(planner: str) -> None:
    """As far as it came when it was told, and no further than the points that were under way."""
    chain, stop = ms.profiles.load("densenet201-224-b32"), threading.Event()
    low, high = ms.min_memory(chain, "dynprog"), ms.peak_memory(chain)
    devices = tuple(ms.Device(low + (high - low) * k // 100_000, 12e9) for k in range(100_000))
    asked = work.Work(problem=chain, key="k", planner=planner, options={}, table_slots=None, devices=devices)
    timer = threading.Timer(0.4, stop.set)  # in which a busy machine finishes some, and an idle one not all
    timer.start()
    rows = work.run(asked, 60.0, stop)
    timer.join()
    assert 0 < len(rows) < len(devices)
    plan = PLANNERS[planner].plan
    assert [row["makespan"] for row in rows[:3]] == [plan(chain, device=one).makespan for one in devices[:3]]


def test_ctrl_c_ends_a_sweep_of_many_points() -> None:
    memory = [f"{1 + k / 500}%" for k in range(40_000)]

    def interrupt(progress: ms.SweepProgress) -> None:
        if progress.finished:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        swept(CHAIN, "greedy", memory=memory, beta=[12e9], progress=interrupt)


def test_each_row_says_which_plans_its_bound_covers(tmp_path: Path) -> None:
    planners = ["greedy", "offload", "rotor", "pofo", "auto"]
    chain = ms.profiles.load(CHAIN)
    options = {"offload": {"moves": 200}}
    found = ms.sweep(chain, planners, memory=["20%", "60%"], beta=["12GB/s"], options=options, store=tmp_path / "s.db")
    for row in found:
        alone = ms.plan_again(tmp_path / "s.db", row["key"])
        assert row["bound_on"] == alone.bound_on
        assert row["lower_bound"] == alone.lower_bound
    assert {row["planner"] for row in found if row["bound_on"] == "once"} == {"greedy", "offload"}
    assert {row["key"]: row for row in ms.read_store(tmp_path / "s.db")} == {row["key"]: row for row in found}
    table = ms.compare(chain, "20%", "12GB/s", planners=["greedy", "rotor"]).to_pandas()
    assert dict(zip(table["planner"], table["bound_on"], strict=True)) == {"greedy": "once", "rotor": "all"}
    assert set(ms.frontier(chain, "12GB/s", planner="rotor", points=2).to_pandas()["bound_on"]) == {"all"}


def test_gaps_of_two_kinds_and_plans_of_shared_tables_are_told(tmp_path: Path) -> None:
    chain = ms.profiles.load(CHAIN)
    found = ms.sweep(chain, ["greedy", "rotor"], memory=["20%"], beta=["12GB/s"])
    told = "to the bound on all plans (rotor) or on those that run each op once (greedy)"
    assert kinds_of_gaps(found).startswith(f"gap: {told}")
    ms.write_report(found, tmp_path / "s.html")
    assert f"Gap: {told}" in (tmp_path / "s.html").read_text(encoding="utf-8")
    assert not kinds_of_gaps(row for row in found if row["planner"] == "rotor")
    assert "one table for all memories: pofo" in str(ms.frontier(chain, "12GB/s", planner="pofo", points=2))
    assert "one table" not in str(ms.frontier(chain, "12GB/s", planner="greedy", points=2))
