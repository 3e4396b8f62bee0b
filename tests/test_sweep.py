"""Sweeps against the planners called point by point, and what becomes of points that fail."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memsched as ms
from memsched.planners.entry import options_of
from memsched.planners.registry import PLANNERS
from memsched.study.frontier import frontier
from memsched.study.sweep.arguments import _QUANTITIES
from memsched.study.sweep.points import group, swept_problem
from memsched.study.sweep.rows import MEASURES
from memsched.support.memo import once_per_object
from memsched.testing import chains

CHAIN = "resnet18-224-b32"
MEMORY = ["-", "20%", "45%", "90%"]


def counted(monkeypatch: pytest.MonkeyPatch, name: str = "greedy") -> list[int]:
    """The memories for which a planner is called, from now on."""
    calls: list[int] = []
    real = PLANNERS[name].plan

    def plan(chain: ms.Chain, *, device: ms.Device, chunk: int | None = None) -> ms.Result:
        calls.append(device.memory)
        return real(chain, device=device, chunk=chunk)

    monkeypatch.setitem(PLANNERS, name, dataclasses.replace(PLANNERS[name], plan=plan, figures=None))
    return calls


def one_by_one(problems: list[Any], planners: list[str], memory: list[str], beta: list[float]) -> list[dict[str, Any]]:
    """The slow way."""
    found = []
    for problem in problems:
        for planner in planners:
            for wanted in memory:
                for speed in beta:
                    least, peak = ms.min_memory(problem), ms.peak_memory(problem)
                    budget = int(least + float(wanted[:-1]) / 100 * (peak - least))
                    row: dict[str, Any] = {
                        "problem": problem.name,
                        "planner": planner,
                        "memory": budget,
                        "bandwidth": speed,
                    }
                    try:
                        result = getattr(ms, planner)(problem, budget, speed)
                        row |= {"status": "planned", "makespan": result.makespan, "lower_bound": result.lower_bound}
                        row |= {"peak_memory": result.peak_memory, "gap": result.gap, "optimal": result.optimal}
                        row |= {"estimate": result.estimate, "bytes_out": result.timeline.bytes_out}
                        row |= {"offloaded": len({s["offload"] for s in result.schedule.steps if "offload" in s})}
                        runs = Counter(step["run"] for step in result.schedule.steps if "run" in step)
                        row |= {"recomputed": sum(times > 1 for times in runs.values())}
                    except ms.InfeasibleError as error:
                        row |= {"status": "infeasible", "min_memory": error.min_memory, "error": str(error)}
                    found.append(row)
    return found


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_sweep_is_what_the_planners_say_point_by_point(jobs: int) -> None:
    problems = [ms.profiles.load("resnet18-224-b32"), ms.profiles.load("vgg16-224-b32")]
    planners, memory, beta = ["greedy", "rotor", "dynprog", "pofo"], ["0%", "15%", "60%"], [3e9, math.inf]
    table = ms.sweep(problems, planners, memory=memory, beta=beta, shared_tables=False, jobs=jobs)
    slow = one_by_one(problems, planners, memory, beta)
    assert len(table) == len(slow) == 48
    assert {"planned", "infeasible"} == {row["status"] for row in table}
    for row, known in zip(table, slow, strict=True):
        assert {key: row[key] for key in known} == known
        assert all(row[key] is None for key in MEASURES if key not in known) or row["status"] == "planned"


def test_rows_have_the_percentage_to_group_by(tmp_path: Path) -> None:
    problems = ["resnet18-224-b32", ms.profiles.load("densenet121-224-b32")]
    inputs: dict[str, Any] = {"planners": ["greedy"], "memory": ["0%", "12.5%", "40%", "100%", "1 GB"], "beta": 12e9}
    swept, kept = (ms.sweep(problems, **inputs, store=store) for store in (None, tmp_path / "s.sqlite"))
    for rows in (swept, kept, ms.read_store(tmp_path / "s.sqlite")):
        percents = Counter(row["memory_percent"] for row in rows)
        assert {one: count for one, count in percents.items() if count == 2} == {0: 2, 12.5: 2, 40: 2, 100: 2}
        assert len(percents) == 6
        assert set(rows.to_pandas()["memory_percent"]) == set(percents)
    one = ms.sweep(ms.Chain([1], [1], [4, 4], [0, 4]), ["greedy"], memory=[20], beta=1)
    assert one[0]["memory_percent"] is None  # nothing is saved: least and most are one


def test_one_table_answers_all_memories_as_in_a_frontier() -> None:
    chain = ms.profiles.load("resnet34-224-b32")
    peak = ms.peak_memory(chain)
    memory = [int(share * peak) for share in (0.5, 0.7, 0.9, 1.0, 1.2)]
    for planner in ("rotor", "pofo"):
        curve = frontier(chain, beta=8e9, planner=planner, memory=memory, slots=300)
        table = ms.sweep(chain, [planner], memory=memory, beta=[8e9], slots_of_tables=300)
        assert [row["makespan"] or math.inf for row in table] == curve.makespan.tolist()
        assert [row["table_slots"] for row in table] == [300] * 5
        alone = ms.sweep(chain, [planner], memory=[memory[2]], beta=[8e9], slots_of_tables=300)
        assert alone.rows[0]["key"] == table.rows[2]["key"]
        assert alone.rows[0]["makespan"] == table.rows[2]["makespan"]


def test_options_reach_the_planner_and_keep_points_apart(tmp_path: Path) -> None:
    chain, store = ms.profiles.load("densenet121-224-b32"), tmp_path / "ties.sqlite"
    found = {}
    for ties in ("paper", "simulate"):
        options = {"dynprog": {"slots": 60, "ties": ties}}
        table = ms.sweep(chain, ["dynprog"], memory=["70%"], beta=[12.2e9], options=options, store=store)
        (row,) = table.rows
        found[ties] = row["makespan"]
        assert found[ties] == ms.dynprog(chain, row["memory"], 12.2e9, slots=60, ties=ties).makespan
    assert found["simulate"] < found["paper"]


def test_a_chunk_for_all_goes_to_chains_only() -> None:
    """Planners of chains and graphs had it for both, and failed on graphs."""
    problems, options = [CHAIN, "graph:resnet18-224-b32"], {"all": {"chunk": 2**24, "time_limit": 0.2}}
    table = ms.sweep(problems, ["tflms"], memory=["100%"], beta=[12e9], options=options)
    assert [(row["status"], "chunk" in row["options"]) for row in table] == [("planned", True), ("planned", False)]


def test_options_that_a_table_cannot_serve_plan_each_point_by_itself() -> None:
    table = ms.sweep(CHAIN, ["pofo", "rotor"], memory=["40%"], beta=[8e9], options={"pofo": {"labels": "exact"}})
    assert [row["table_slots"] is None for row in table] == [True, False]
    assert table.rows[0]["options"] == {"labels": "exact"}


def test_families_and_graphs_by_name() -> None:
    problems = ["analytic:alexnet:64", "graph:resnet18-224-b32"]
    table = ms.sweep(problems, ["swap_all", "modnn"], memory=["95%"], beta=["12GB/s"], jobs=2)
    assert {(row["problem"], row["planner"]) for row in table if row["status"] == "planned"} >= {
        ("resnet18-224-b32", "swap_all"),
        ("resnet18-224-b32", "modnn"),
        (table.rows[0]["problem"], "modnn"),
    }
    assert table.count("failed") == 0


def test_a_training_step_by_its_name() -> None:
    (row,) = ms.sweep("vit-224-b64-f32", ["swap_all"], memory=["95%"], beta=["12GB/s"])
    assert (row["status"], row["problem"]) == ("planned", "vit-224-b64-f32")


@settings(max_examples=15, deadline=None)
@given(st.lists(chains(max_stages=5), min_size=1, max_size=3), st.sampled_from([0.0, 1.0, math.inf]))
def test_any_chains_end_in_one_row_a_point(problems: list[ms.Chain], beta: float) -> None:
    memory = [max(1, ms.peak_memory(problems[0]) // 2), ms.peak_memory(problems[0]) + 2]
    table = ms.sweep(problems, ["greedy", "rotor", "tflms"], memory=memory, beta=[beta], jobs=2)
    different = {swept_problem(one).key for one in problems}
    assert len(table) == len({row["key"] for row in table}) == len(different) * 6
    assert table.count("failed") == 0


def test_the_key_names_all_that_a_point_depends_on() -> None:
    chain = ms.profiles.load(CHAIN)
    problem, device = swept_problem(chain), ms.Device(10**9, 8e9)

    def key(problem: Any = problem, planner: str = "rotor", options: Any = None, slots: int | None = None,
            device: ms.Device = device, version: str = "1") -> str:  # fmt: skip
        return group(problem, planner, options or {}, slots, [device], version).keys[0]

    document = chain.to_json()
    other = ms.Chain.from_json({**document, "backward_time": [1.0, *document["backward_time"][1:]]})
    known = document["provenance"]
    linked = ms.Chain.from_json({**document, "provenance": {**known, "link_bandwidth": 1e9}})  # `plan` tries it, too
    keys = [
        key(),
        key(problem=swept_problem(other)),
        key(problem=swept_problem(linked)),
        key(planner="pofo"),
        key(options={"slots": 500}),
        key(slots=500),
        key(version="2"),
        key(device=ms.Device(10**9, d2h=8e9, h2d=9e9)),
        key(device=ms.Device(10**9, 9e9)),
        key(device=ms.Device(10**9, math.inf)),
        key(device=ms.Device(10**9, 8e9, duplex=True)),
        key(device=ms.Device(10**9, 8e9, latency=1e-6)),
        key(device=ms.Device(10**9, 8e9, host_memory=10**9)),
        key(device=ms.Device(10**9 + 1, 8e9)),
    ]
    assert len(set(keys)) == len(keys)
    renamed = ms.Chain.from_json({**document, "name": "another", "provenance": {**known, "x": 1}})
    assert key(problem=swept_problem(renamed)) == key()
    assert key(device=ms.Device(10**9, 8e9, name="a GPU")) == key()


def test_the_same_point_is_planned_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = counted(monkeypatch)
    chain = ms.profiles.load(CHAIN)
    half = ms.min_memory(chain) + (ms.peak_memory(chain) - ms.min_memory(chain)) // 2
    store = tmp_path / "a.sqlite"
    table = ms.sweep(
        [CHAIN, chain], ["greedy", "greedy"], memory=["50%", half, "60%"], beta=[8e9, "8GB/s"], store=store
    )
    assert len(table) == 2
    assert len(calls) == 2
    again = ms.sweep(chain, ["greedy"], memory=["60%", "50%", "70%"], beta=[8e9], store=store)
    assert len(calls) == 3
    assert [row["memory"] for row in again] == [calls[1], calls[0], calls[2]]
    assert len(ms.read_store(store)) == 3


def test_a_planner_that_raises_costs_its_own_points_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = PLANNERS["greedy"].plan
    broken = {700_000_000, 760_000_000}

    def plan(chain: ms.Chain, *, device: ms.Device) -> ms.Result:
        if device.memory in broken:
            raise ZeroDivisionError("a bug of the planner")
        return real(chain, device=device)

    monkeypatch.setitem(PLANNERS, "greedy", dataclasses.replace(PLANNERS["greedy"], plan=plan, figures=None))
    memory = list(range(650_000_000, 850_000_000, 10_000_000))
    store = tmp_path / "a.sqlite"
    table = ms.sweep(CHAIN, ["greedy"], memory=memory, beta=[8e9], store=store, jobs=2)
    failed = [row for row in table if row["status"] == "failed"]
    assert {row["memory"] for row in failed} == broken
    assert {row["error"] for row in failed} == {"ZeroDivisionError: a bug of the planner"}
    assert table.count("planned") == 18
    broken.clear()
    assert ms.sweep(CHAIN, ["greedy"], memory=memory, beta=[8e9], store=store).count("failed") == 2
    assert ms.sweep(CHAIN, ["greedy"], memory=memory, beta=[8e9], store=store, retry_failed=True).count("planned") == 20


def test_progress_counts_every_point_and_an_interruption_keeps_what_is_finished(tmp_path: Path) -> None:
    seen: list[ms.SweepProgress] = []

    def interrupt(progress: ms.SweepProgress) -> None:
        seen.append(progress)
        if progress.finished >= 3:
            raise KeyboardInterrupt

    memory = [f"{share}%" for share in range(5, 100, 5)]
    arguments: dict[str, Any] = {"memory": memory, "beta": [4e9, 8e9], "store": tmp_path / "a.sqlite", "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        ms.sweep("resnet101-224-b32", ["dynprog"], progress=interrupt, **arguments)
    kept = ms.read_store(tmp_path / "a.sqlite")
    assert len(kept) >= 3
    finished: list[ms.SweepProgress] = []
    table = ms.sweep("resnet101-224-b32", ["dynprog"], progress=finished.append, **arguments)
    assert len(table) == 38
    last = finished[-1]
    assert (last.points, last.kept, last.finished) == (38, len(kept), 38 - len(kept))
    assert last.remaining == 0.0
    assert last.rate > 0


def test_tables_are_tidy(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = ms.sweep(
        [CHAIN], ["greedy", "rotor"], memory=["0%", "50%"], beta=[0, "inf"], options={"rotor": {"slots": 77}}
    )
    frame = table.to_pandas()
    assert len(frame) == len(table) == 8
    assert frame["memory"].dtype == "Int64"
    for at, row in enumerate(table):
        assert frame["memory"][at] == row["memory"]
        assert frame["status"][at] == row["status"]
        assert (row["makespan"] is None) == bool(pandas.isna(frame["makespan"][at]))
    table.to_parquet(tmp_path / "a.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(tmp_path / "a.parquet"), frame)
    table.to_csv(tmp_path / "a.csv")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 9
    with pytest.raises(ms.InvalidInputError, match="cannot be written"):
        table.to_csv(tmp_path / "nowhere" / "a.csv")


def test_whole_numbers_beside_missing_ones_keep_every_digit() -> None:
    pytest.importorskip("pandas")
    table = ms.sweep("resnet18-224-b32", ["greedy"], memory=["0%", 1], beta=["12GB/s"])
    table.rows[0]["bytes_out"] = 2**53 + 1
    assert table.rows[1]["bytes_out"] is None
    assert table.to_pandas()["bytes_out"][0] == 2**53 + 1


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = ms.sweep([CHAIN, "vgg16-224-b32"], ["greedy", "rotor"], memory=["20%", "50%"], beta=[8e9])
    figure = table.plot(tmp_path / "a.png")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"{CHAIN}, 8 GB/s", "vgg16-224-b32, 8 GB/s"]
    drawn = {
        tuple(np.round(line.get_ydata(), 9)) for line in figure.axes[0].lines if line.get_label() in ("greedy", "rotor")
    }
    over = {
        tuple(
            round(row["makespan"] / row["ideal"] - 1, 9)
            for row in sorted(table, key=lambda row: row["memory"])
            if (row["problem"], row["planner"]) == (CHAIN, planner)
        )
        for planner in ("greedy", "rotor")
    }
    assert drawn == over
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(ms.InvalidInputError, match="no planned point"):
        ms.sweep(CHAIN, ["greedy"], memory=[1], beta=[8e9]).plot()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no problem": ({"problems": []}, "problems is "),
    "another kind": ({"problems": [3]}, "problems has 3"),
    "unknown name": ({"problems": "resnet19"}, "resnet19"),
    "unknown planner": ({"planners": ["fastest"]}, "planner is 'fastest'"),
    "no planner": ({"planners": []}, "planners is empty"),
    "chains only": ({"problems": "graph:resnet18-224-b32", "planners": ["rotor"]}, "rotor plans chains"),
    "no memory": ({"memory": []}, "memory is "),
    "memory as a mapping": ({"memory": {"from": "40%"}}, "memory is {'from': '40%'}"),
    "bad memory": ({"memory": ["40 apples"]}, "40 apples"),
    "zero memory": ({"memory": [0]}, "more than 0"),
    "bad link": ({"beta": [-1]}, "bandwidth is -1"),
    "no device": ({"device": 3}, "device is 3"),
    "unknown option": ({"options": {"greedy": {"slots": 3}}}, "greedy has no option 'slots'"),
    "option of nobody": ({"options": {"all": {"speed": 3}}}, "no planner has the option 'speed'"),
    "options of an absent": ({"options": {"rotor": {"slots": 3}}}, "not among the planners greedy"),
    "option with a list": ({"options": {"greedy": {"chunk": [1]}}}, "must be a finite number, a text"),
    "infinite option": ({"options": {"all": {"time_limit": math.inf}}}, "must be a finite number"),
    "store": ({"store": ":memory:"}, "store is ':memory:'"),
    "endless option": ({"options": {"greedy": {"chunk": 10**5000}}}, "option 'chunk' is a int that cannot be shown"),
    "jobs": ({"jobs": 0}, "jobs is 0"),
    "executor": ({"executor": "gpu"}, "executor is 'gpu'"),
    "slots": ({"slots_of_tables": 0}, "slots_of_tables is 0"),
    "flag": ({"shared_tables": 1}, "shared_tables is 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_told_before_anything_is_planned_or_written(case: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"problems": CHAIN, "planners": ["greedy"], "memory": ["50%"], "beta": [8e9]}
    changes, message = BAD[case]
    with pytest.raises(ms.InvalidInputError, match=message) as told:
        ms.sweep(**{"store": tmp_path / "a.sqlite", **arguments, **changes})
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_values_that_a_planner_refuses_are_failures_of_its_points() -> None:
    table = ms.sweep(CHAIN, ["greedy", "dynprog"], memory=["50%"], beta=[8e9], options={"dynprog": {"slots": -3}})
    assert [row["status"] for row in table] == ["planned", "failed"]
    assert table.rows[1]["error"].startswith("InvalidInputError: slots is -3")


def test_what_is_computed_once_an_object_is_forgotten_with_it() -> None:
    made: list[tuple[int, Any]] = []

    @once_per_object
    def of(one: ms.Chain, more: Any) -> int:
        made.append((one.n, more))
        return len(made)

    first, equal = (ms.Chain([1], [1], [1, 1], [1, 1]) for _ in range(2))
    assert [of(first, 1), of(first, 1), of(first, True), of(equal, 1), of(first, 1)] == [1, 1, 2, 3, 1]
    for _ in range(50):  # addresses come back
        of(ms.Chain([1], [1], [1, 1], [1, 1]), 1)
    assert len(made) == 53


def test_a_point_can_be_planned_again(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    problems = [ms.profiles.load(CHAIN), "graph:resnet18-224-b32", "analytic:alexnet:64"]
    arguments: dict[str, Any] = {"memory": ["97%"], "beta": [8e9], "store": path}
    table = ms.sweep(problems[:1], ["rotor", "dynprog"], options={"dynprog": {"slots": 50}}, **arguments)
    graphs = ms.sweep(problems[1:], ["modnn"], device=ms.Device(1, duplex=True), **arguments)
    for row in [*table, *graphs]:
        result = ms.plan_again(path, row["key"])
        assert row["status"] == "planned"
        assert (result.makespan, result.peak_memory) == (row["makespan"], row["peak_memory"])
        assert len(result.offloaded) == row["offloaded"]
        assert ms.validate(result).makespan == pytest.approx(row["makespan"])
    with pytest.raises(ms.InvalidInputError, match="has no point 'nobody'"):
        ms.plan_again(path, "nobody")


def test_families_that_differ_between_their_ends_are_told_apart(tmp_path: Path) -> None:
    family = ms.profiles.analytic("alexnet", 32)
    more, less = (ms.GraphFamily.from_json(family.to_json(batches)) for batches in ((8, 16), ()))
    assert len({swept_problem(one).key for one in (more, less)}) == 2
    path = tmp_path / "a.sqlite"
    table = ms.sweep([more, less, family], ["vdnn_plus"], memory=["60%"], beta=[8e9], store=path)
    assert len(table) == 3
    for row, known in zip(table, (more, less), strict=False):
        if row["status"] == "planned":
            assert ms.plan_again(path, row["key"]).makespan == row["makespan"]
            assert ms.vdnn_plus(known, row["memory"], 8e9).makespan == row["makespan"]


def test_chains_that_differ_in_the_link_of_their_profile_only_are_both_swept() -> None:
    document = ms.profiles.load(CHAIN).to_json()
    links = (6e9, 12e9)
    pair = [ms.Chain.from_json({**document, "provenance": {"link_bandwidth": link}}) for link in links]
    assert [row["bandwidth"] for row in ms.sweep(pair, ["greedy"], memory=["60%"])] == [6e9, 12e9]


def test_arguments_may_be_read_once_only() -> None:
    table = ms.sweep(iter([CHAIN, "vgg16-224-b32"]), iter(["greedy"]), memory=iter(["60%"]), beta=iter([8e9, 9e9]))
    assert len(table) == 4


def test_more_points_than_a_sweep_may_have_are_counted_before_any_is_made() -> None:
    """400 million used to take all memory."""
    memory, beta = range(1, 20_001), range(1, 20_001)
    begin = time.process_time()
    with pytest.raises(ms.LimitError, match=r"400000000 points or more, and a sweep has at most 1000000"):
        ms.sweep(CHAIN, ["greedy"], memory=memory, beta=beta)
    with pytest.raises(ms.LimitError, match="at most 1000000"):
        ms.sweep(["resnet18-224-b32"] * 1_001, ["greedy"], memory=memory, beta=[1.0])
    with pytest.raises(ms.LimitError, match="at most 1000000"):
        ms.sweep(CHAIN, memory=memory, beta=range(1, 12))  # with each planner that there is
    for endless in ({"memory": itertools.count(1)}, {"memory": [1], "beta": itertools.count(1)}):
        with pytest.raises(ms.LimitError, match="at most 1000000"):
            ms.sweep(CHAIN, ["greedy"], **{"beta": [1.0], **endless})  # type: ignore[arg-type]
    with pytest.raises(ms.LimitError, match="at most 1000000"):
        ms.sweep(itertools.repeat(CHAIN), ["greedy"], memory=[1], beta=[1.0])  # type: ignore[arg-type]
    assert time.process_time() - begin < 60  # each pair used to be made: minutes, and all memory


def test_an_option_written_in_several_ways_is_one_point() -> None:
    size = 2**24
    chunks = (size, np.int64(size), float(size), "16MiB", str(size), Fraction(size), Decimal(size))
    rows = [
        ms.sweep(CHAIN, ["greedy"], memory=["70%"], beta=[8e9], options={"greedy": {"chunk": chunk}}).rows
        for chunk in chunks
    ]
    assert len({row["key"] for (row,) in rows}) == 1
    assert {row["status"] for (row,) in rows} == {"planned"}
    step = ms.profiles.load_graph("resnet18-224-b32")
    for name, values in {
        "workspace_limit": (1000, 1000.0, "1kB", "1 kB", np.int64(1000)),
        "memory_bandwidth": (math.inf, "inf", np.float64(math.inf)),
    }.items():
        planners = ["modnn" if name == "memory_bandwidth" else "swap_all"]
        tables = [
            ms.sweep(step, planners, memory=["70%"], beta=8e9, options={"all": {name: value}}) for value in values
        ]
        assert len({table.rows[0]["key"] for table in tables}) == 1
        assert {table.rows[0]["status"] for table in tables} == {"planned"}
    zero, minus = (ms.Chain([time, 2], [1, 1], [3] * 3, [3] * 3) for time in (0.0, -0.0))
    assert len(ms.sweep([zero, minus], ["greedy"], memory=["50%"], beta=2).rows) == 1


def test_each_option_that_may_be_written_in_several_ways_is_known() -> None:
    written = {
        name
        for entry in PLANNERS.values()
        for name, one in options_of(entry.plan).items()
        if str(one.annotation).partition(" |")[0] in ("ChunkLike", "Quantity", "Size", "float")
    }
    assert written == set(_QUANTITIES)


def test_a_family_by_name_and_the_same_as_an_object_are_two_problems(tmp_path: Path) -> None:
    """By name it has graphs at all batches: a store gave the row of one for the other."""
    family, where = ms.profiles.analytic("vgg16", 24), {"memory": [1_433_445_900], "beta": [1e10]}
    store = tmp_path / "s.db"
    makespans = set()
    for problem in (family, "analytic:vgg16:24"):
        (row,) = ms.sweep(problem, ["modnn"], store=store, **where).rows
        makespans.add(row["makespan"])
        assert ms.plan_again(store, row["key"]).makespan == row["makespan"]
    assert len(makespans) == len(ms.read_store(store).rows) == 2
    assert ms.modnn(family, 1_433_445_900, 1e10).makespan in makespans


def test_two_names_of_one_problem_are_one_problem() -> None:
    """A V100 is meant where no GPU is named."""
    names = ["analytic:alexnet:64", "analytic:alexnet:64:v100", "analytic:alexnet:064:V100", "analytic:alexnet:64:k40m"]
    table = ms.sweep(names, ["swap_all"], memory=["100%"], beta=[6e9])
    assert [row["problem"] for row in table] == ["alexnet@v100", "alexnet@k40m"]


@pytest.mark.parametrize(("name", "link"), [("graph:vgg16-224-b32", 12.2e9), ("vit-224-b64-bf16", 24.4e9)])
def test_a_shipped_graph_has_the_link_of_its_profile(name: str, link: float) -> None:
    for beta in (None, ["profile"]):
        assert [row["bandwidth"] for row in ms.sweep(name, ["vdnn_sync"], memory=["100%"], beta=beta)] == [link]
    graph = ms.profiles.load_graph(name.removeprefix("graph:"))
    other = ms.Graph.from_json({**graph.to_json(), "resident": 5})
    with pytest.warns(UserWarning, match=r"swept with 12\.2 GB/s, PCIe 3\.0 x16, .*; give a bandwidth for another"):
        assert [row["bandwidth"] for row in ms.sweep(other, ["vdnn_sync"], memory=["100%"])] == [12.2e9]
