"""Every call takes quantities as the command line does: texts with units, or numbers of any kind."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.problems.budget import parse_memory

MIB = 2**20
CHAIN = ms.Chain([1, 2, 1], [2, 1, 2], [4 * MIB, 6 * MIB, 5 * MIB, 3 * MIB], [0, 6 * MIB, 5 * MIB, 3 * MIB])
GRAPH = ms.to_graph(CHAIN)
HALF = parse_memory("50%", CHAIN)
CHAINS = sorted(name for name, one in PLANNERS.items() if "chain" in one.problems)
GRAPHS = sorted(name for name, one in PLANNERS.items() if "graph" in one.problems and name != "checkmate")


def same(one: ms.Result, other: ms.Result) -> None:
    assert one.device == other.device
    assert one.schedule == other.schedule
    assert one.makespan == other.makespan


@pytest.mark.parametrize("planner", sorted({*CHAINS, *GRAPHS}))
def test_texts_are_numbers_for_every_planner(planner: str) -> None:
    problem, plan = CHAIN if planner in CHAINS else GRAPH, getattr(ms, planner)
    kib = -(-ms.min_memory(problem, planner) // 1024)
    same(plan(problem, f"{kib} KiB", "64MB/s"), plan(problem, 1024 * kib, 64e6))
    same(plan(problem, "100%", "64MB/s"), plan(problem, ms.peak_memory(problem), 64e6))


@pytest.mark.parametrize("planner", sorted({*CHAINS, *GRAPHS}))
def test_every_time_limit_takes_a_text(planner: str) -> None:
    plan = getattr(ms, planner)
    if "time_limit" not in inspect.signature(plan).parameters:
        return
    problem = CHAIN if planner in CHAINS else GRAPH
    assert plan(problem, "100%", "64MB/s", time_limit="200 ms").peak_memory <= ms.peak_memory(CHAIN)


@pytest.mark.parametrize("planner", ["offload", "greedy", "dynprog", "vdnn", "pofo", "rotor"])
def test_pieces_take_a_text(planner: str) -> None:
    plan = getattr(ms, planner)
    one, other = plan(CHAIN, "100%", 64e6, chunk="1MiB"), plan(CHAIN, "100%", 64e6, chunk=MIB)
    same(one, other)
    assert one.schedule.chunk == one.params["chunk"] == MIB
    assert ms.Result.from_json(one.to_json()).makespan == one.makespan


def test_verbs_take_texts() -> None:
    same(ms.plan(CHAIN, "50%", "64MB/s"), ms.plan(CHAIN, HALF, 64e6))
    same(ms.plan(CHAIN, "50%", "64MB/s", planner="greedy", chunk="1MiB"), ms.greedy(CHAIN, HALF, 64e6, chunk=MIB))
    found = ms.compare(CHAIN, "50%", "64MB/s", planners=["greedy"], chunk="1MiB", time_limit="1 s")
    assert found["greedy"].makespan == ms.greedy(CHAIN, HALF, 64e6, chunk=MIB).makespan  # type: ignore[union-attr]
    assert ms.bounds(CHAIN, "50%", "64MB/s", time_limit="1 s") == ms.bounds(CHAIN, HALF, 64e6)
    texts = ms.frontier(CHAIN, "64MB/s", planner="greedy", memory=["50%", "22MiB"])
    assert texts.memory.tolist() == sorted([HALF, 22 * MIB])
    assert [op["name"] for op in ms.to_graph(CHAIN, "1MiB").ops] == [op["name"] for op in GRAPH.ops]
    buffers = [ms.Buffer(0, 2, "4KiB", alignment="1KiB"), ms.Buffer(1, 3, "2kB")]
    assert [one.size for one in buffers] == [4096, 2000]
    assert ms.place(buffers, capacity="8KiB", time_limit="1 s").height <= 8192


def test_devices_take_texts() -> None:
    given = ms.Device("16GiB", "12GB/s", latency="10us", host_memory="64GiB")
    assert given == ms.Device(2**34, 12e9, latency=1e-5, host_memory=2**36)
    assert ms.Device("1GB", d2h="3GB/s", h2d="inf").h2d == float("inf")
    assert ms.dynprog(CHAIN, "50%", device=ms.Device("1GB", "64MB/s")).device.memory == HALF


@pytest.mark.parametrize(
    "number", [int, np.int64, np.float64, np.uint64, float, Fraction, lambda n: np.array(n)[()], lambda n: f"{n}"]
)
def test_numbers_of_any_kind(number: Callable[[int], Any]) -> None:
    same(ms.greedy(CHAIN, number(HALF), number(64_000_000)), ms.greedy(CHAIN, HALF, 64e6))


def test_columns_of_pandas_and_polars() -> None:
    for name in ("pandas", "polars"):
        module = pytest.importorskip(name)
        columns = [module.Series(list(values)) for values in ([1, 1], [2, 2], [4, 4, 4], [0, 4, 4])]
        assert ms.Chain(*columns) == ms.Chain([1, 1], [2, 2], [4, 4, 4], [0, 4, 4])


@pytest.mark.parametrize("call", [ms.greedy, ms.plan, ms.bounds, lambda *a: ms.compare(*a, planners=["greedy"])])
def test_a_link_without_its_unit_is_told_where_it_was_written(call: Callable[..., Any]) -> None:
    with pytest.warns(UserWarning, match=r"beta is 12\.2 B/s, which takes .* such as 12GB/s") as told:
        call(CHAIN, "60%", 12.2)
    assert Path(told[0].filename) == Path(__file__)


@pytest.mark.parametrize(("problem", "beta"), [(CHAIN, 12e9), (CHAIN, 1e4), (CHAIN, 0), (CHAIN, np.inf)])
def test_a_link_that_can_be_meant_is_not(problem: ms.Chain, beta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ms.greedy(problem, "100%", beta)
        ms.greedy(ms.Chain([1, 1], [1, 1], [4, 4, 4], [0, 4, 4]), "100%", 1e-6)


def test_saved_files_are_loaded(tmp_path: Path) -> None:
    result = ms.greedy(CHAIN, "50%", "64MB/s")
    kept: list[Any] = [CHAIN, GRAPH, result.device, result.schedule, result]
    kept.append(ms.GraphFamily(lambda batch: ms.Graph(GRAPH.tensors, GRAPH.ops, batch=batch, name="x"), 2))
    for number, one in enumerate(kept):
        path = tmp_path / f"{number}.json"
        one.save(path)
        back = type(one).load(str(path))
        assert back.to_json() == one.to_json()
        with pytest.raises(ms.InvalidInputError, match="format"):
            (ms.Graph if type(one) is ms.Chain else ms.Chain).load(path)
    place = ms.place(result)
    place.save(tmp_path / "place.json")
    assert ms.Placement.from_json(tmp_path / "place.json").offsets == place.offsets
    for wrong in (5, "", None, "{}"):
        with pytest.raises(ms.InvalidInputError):
            ms.Chain.load(wrong)  # type: ignore[arg-type]


def test_documents_are_as_strict_as_before() -> None:
    device = ms.Device(8, 1).to_json()
    for key, value in (("memory", "8GiB"), ("latency", "1ms"), ("host_memory", "8GiB"), ("d2h", "1GB/s")):
        with pytest.raises(ms.InvalidInputError, match="number"):
            ms.Device.from_json({**device, key: value})
    placed = ms.place([ms.Buffer(0, 1, 4096)]).to_json()
    placed["buffers"][0]["size"] = "4KiB"
    with pytest.raises(ms.InvalidInputError, match="size"):
        ms.Placement.from_json(placed)


def test_all_missing_keys_are_told_at_once() -> None:
    with pytest.raises(ms.InvalidInputError, match="lacks 'backward_time', 'activation', 'gradient'"):
        ms.Chain.from_json({"format": "memsched-chain/1", "forward_time": [1]})


def test_units_as_spreadsheets_and_keyboards_write_them() -> None:
    assert ms.Device("5\u00a0MB", "1\u202fGB/s", latency="1 \u03bcs") == ms.Device(5e6, 1e9, latency="1 \u00b5s")
    for bits in ("12Kb/s", "12kb/s", "12b/s"):
        with pytest.raises(ms.InvalidInputError, match="bits"):
            ms.Device(1, bits)


@pytest.mark.parametrize("value", ["nan", -1, "1 min", "", "-1"])
def test_limits_are_checked_where_a_planner_hands_on(value: Any) -> None:
    with pytest.raises(ms.InvalidInputError):
        ms.vdnn(GRAPH, "100%", "64MB/s", time_limit=value)


def test_no_pieces_is_the_same_in_words() -> None:
    for planner in (ms.vdnn, ms.tflms):
        same(planner(GRAPH, "100%", "64MB/s", chunk="none"), planner(GRAPH, "100%", "64MB/s"))
