"""What newcomers wrote in Python, table by table: what is told, and what reads back."""

from __future__ import annotations

import csv
import dataclasses
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import memsched as ms
from memsched.testing import chains
from test_first_contact import OWN, refused

PLAN = ms.greedy(OWN, "40%", "12GB/s")
BUFFERS = [ms.Buffer(0, 3, 4096), ms.Buffer(1, 2, 64)]
PLACED = ms.place(BUFFERS)


class Frame:
    """What has columns, as a data frame."""

    columns = ("name", "forward_time")


@settings(max_examples=30, deadline=None)  # pandas is slow at first
@given(chains())
def test_a_chain_is_its_frame(chain: ms.Chain) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    for frame in (chain.to_pandas(), chain.to_polars()):
        read = ms.Chain.from_frame(frame, name=chain.name, provenance=chain.provenance)
        assert {**read.to_json(), "pieces": None} == {**chain.to_json(), "pieces": None}  # which are in no column
        assert read == chain or chain.pieces is not None
        assert ms.peak_memory(read) == ms.peak_memory(chain)


PROBLEMS: list[Callable[[Any], Any]] = [
    lambda given: ms.plan(given, "40%"),
    lambda given: ms.order(given),
    lambda given: ms.frontier(given),
    lambda given: ms.to_graph(given),
    lambda given: ms.simulate(given, PLAN.schedule, PLAN.device),
    lambda given: ms.Chain(given),  # type: ignore[call-arg]  # wrong on purpose
]


@pytest.mark.parametrize("call", PROBLEMS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mine.csv", "Chain.from_csv(path) reads one"),
        (Path("a") / "mine.CSV", "Chain.from_csv(path) reads one"),
        ("mine.onnx", "Graph.from_onnx(path) reads one"),
        ("mine.json", "profiles.load(name) and Chain.load(path) make one"),
        (Frame(), "Chain.from_frame(table) makes one"),
        ({"forward_time": [1]}, "Chain.from_frame(table) makes one"),
        (OWN.to_json(), "Chain.from_json makes one"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_what_makes_a_problem_of_a_file_or_a_table_is_told(call: Callable[[Any], Any], given: Any, said: str) -> None:
    refused(lambda: call(given), said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ms.place("buf.csv"), "read_buffers(path) reads one from a CSV file"),
        (lambda: ms.place(Path("snap.pickle")), "read_snapshot(path)"),
        (lambda: ms.place([(0, 3, 4096)]), "it must be a Buffer(start, end, size)"),
        (lambda: ms.plot_addresses(BUFFERS), "place(buffers) makes a Placement of them"),
        (lambda: ms.plot_addresses(BUFFERS[0]), "place(buffers) makes a Placement of them"),
        (lambda: ms.validate_placement(BUFFERS, PLACED), "give its .offsets"),
        (lambda: ms.validate_placement(PLACED, [0]), "give its .buffers"),
        (lambda: ms.validate_placement(PLACED), "give .buffers, .offsets of the Placement"),
        (lambda: ms.validate("r.json"), "Result.load(path) reads one from a file"),
        (lambda: ms.simulate(PLAN), "give .problem, .schedule, .device of the Result"),
        (lambda: ms.simulate(OWN, PLAN), "give .problem, .schedule, .device of the Result"),
        (lambda: ms.simulate(OWN, PLAN, PLAN.device), "give its .schedule"),
        (lambda: ms.profiles.load("resnet11"), "similar names: resnet1"),
        (lambda: ms.profiles.load("zzz"), "profiles.names() and `memsched profiles` list them"),
        (lambda: ms.profiles.load_graph("zzz"), "profiles.graph_names() and"),
        (lambda: ms.Chain([1], [1]), "Chain needs 'activation'"),
    ],
)
def test_the_remedy_is_a_call(call: Callable[[], Any], said: str) -> None:
    refused(call, said)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    refused(lambda: ms.read_store(tmp_path / "no.sqlite"), "No such file", "sweep(.., store=path)")
    refused(lambda: ms.read_store(tmp_path / "no" / "no.sqlite"), "a folder that exists")


def test_points_are_planned_again_by_the_beginning_of_their_key(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    rows = ms.sweep(OWN, ["greedy"], memory=["40%", "60%"], beta="12GB/s", store=store).rows
    for row in rows:
        assert ms.plan_again(store, row["key"][:8]).makespan == row["makespan"]
    refused(lambda: ms.plan_again(store, rows[0]), 'give row["key"] of the row')  # type: ignore[arg-type]  # on purpose
    refused(lambda: ms.plan_again(store, ""), "2 points whose keys begin with ''")
    refused(lambda: ms.plan_again(store, "x"), "has no point 'x'")


def test_brackets_of_memories_are_not_nested() -> None:
    chain = ms.profiles.load("resnet18-224-b32")
    for memory in (40, "1%"):
        with pytest.raises(ms.InfeasibleError) as caught:
            ms.plan(chain, memory)
        depth = [str(caught.value)[:at].count("(") - str(caught.value)[:at].count(")") for at in range(999)]
        assert max(depth) == 1
        assert str(caught.value).count("pofo") == 1


def test_hashes_name_what_has_none() -> None:
    curve = ms.frontier(OWN, "12GB/s", planner="greedy", memory=["40%"])
    cmp = ms.compare(OWN, "40%", "12GB/s", planners="greedy")
    table = ms.sweep(OWN, ["greedy"], memory="40%", beta="12GB/s")
    without = [OWN, PLAN.graph, PLAN.device, PLAN.schedule, PLAN.timeline, PLAN, cmp, curve, table]
    for one in without:
        kind = type(one)
        with pytest.raises(TypeError, match=rf"unhashable type: '(memsched\._core\.)?{kind.__name__}'"):
            hash(one)
    values = [BUFFERS[0], PLACED, ms.bounds(OWN, "40%", 8), ms.order(OWN), ms.validate(PLAN)]
    assert len({*values, *map(pickle.loads, map(pickle.dumps, values))}) == len(values)
    dataclasses_told = {type(one) for one in (*without, *values)} | {ms.SweepProgress}
    assert {one for one in map(ms.__dict__.get, ms.__all__) if dataclasses.is_dataclass(one)} <= dataclasses_told


def test_comparisons_are_equal_by_what_they_say() -> None:
    found = ms.compare(OWN, "40%", "12GB/s", planners="greedy,tflms,rotor", time_limit=0.01)
    assert any(isinstance(one, ms.MemschedError) for one in found.values())
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert not operator.ne(again, found)
    again["tflms"] = ms.InfeasibleError("another", 1)
    assert again != found
    assert found != dict.fromkeys(found)


def test_all_errors_are_public() -> None:
    with pytest.raises(ms.ArgumentError, match="has no argument"):
        ms.plan(OWN, "40%", bandwidth=1)  # type: ignore[call-arg]  # wrong on purpose


def test_m_and_beta_replace_those_of_the_device() -> None:
    """Whether they are smaller or larger, as the docstrings say."""
    device = ms.Device("50MB", "12GB/s", latency="1us")
    for memory in ("49MB", "60MB"):
        found = ms.greedy(OWN, memory, 8e9, device=device).device
        assert found == ms.Device(memory, 8e9, latency=1e-6)
    for verb in (ms.plan, ms.compare, ms.greedy):
        assert "M or beta, where given too, replaces" in " ".join(str(verb.__doc__).split())


@pytest.mark.parametrize("chunk", [None, 4_000_000])
def test_the_bound_of_a_check_is_on_the_plans_that_the_result_names(chunk: int | None) -> None:
    family = ms.profiles.analytic("vgg16", 4, gpu="k40m")
    plans = [ms.rotor(OWN, "100%"), ms.offload(OWN, "60%", 8e9, chunk=chunk), ms.plan(OWN, "60%", 8e9, chunk=chunk)]
    for plan in (*plans, ms.swap_all(ms.to_graph(OWN), "100%", 8e9), ms.modnn(family, "60%", 8e9)):
        known = ms.validate(plan)
        assert known.bounded == plan.bounded
        assert f" of {plan.bounded}\n" in str(known)
        assert f" of {plan.bounded}" in known._repr_html_()


@pytest.mark.parametrize("kind", ["comparison", "frontier", "sweep"])
def test_figures_are_written_with_units(tmp_path: Path, kind: str) -> None:
    memory, beta = ["40%", "80%"], "12GB/s"
    value: Any = {
        "comparison": lambda: ms.compare(OWN, "40%", beta, planners="greedy,tflms"),
        "frontier": lambda: ms.frontier(OWN, beta, planner="greedy", memory=[1, *memory]),
        "sweep": lambda: ms.sweep(OWN, ["greedy"], memory=memory, beta=beta),
    }[kind]()
    value.to_csv(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = value._columns()
    units = ("_seconds", "_bytes", "_bytes_per_second", "_unix_seconds")
    assert [min((name.removesuffix(unit) for unit in units), key=len) for name in rows[0]] == [
        min((name.removesuffix(unit) for unit in units), key=len) for name in columns
    ]
    assert [row["makespan_seconds"] for row in rows] == [
        "" if seconds is None else str(seconds) for seconds in columns["makespan"][1]
    ]
    assert {"finished", "makespan", "peak_memory", "memory", "bandwidth"}.isdisjoint(rows[0])
