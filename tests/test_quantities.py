"""Every call takes quantities as the command line does: texts with units, or numbers of any kind."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.problems.budget import parse_memory, told_bytes
from memsched.support.formats import Bytes, exact_bytes
from memsched.support.units import parse_bytes

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


def test_chains_and_graphs_are_built_from_texts() -> None:
    times, sizes = ["1 ms", 0.002, "3ms"], ["1MiB", 2 * MIB, "3 MiB", "0.5MiB"]
    chain = ms.Chain(
        times, times, sizes, sizes, saved=["4MiB"] * 3, resident="1GiB", pieces=[["2MiB"], ["1MiB"], ["3.5MiB"]]
    )
    assert chain.forward_time.tolist() == [0.001, 0.002, 0.003]
    assert chain.activation.tolist() == [MIB, 2 * MIB, 3 * MIB, MIB // 2]
    assert (chain.resident, chain.pieces) == (2**30, [[2 * MIB], [MIB], [3 * MIB + MIB // 2]])
    op = {"name": "F", "phase": "fwd", "reads": ["x"], "writes": ["y"], "skip_workspace": "2kB"}
    op |= {"tape": ["y"], "choices": [{"alg": "direct", "time": "2us", "workspace": "1 kB"}]}
    tensors = [{"name": "x", "size": "1kB", "role": "input"}, {"name": "y", "size": 7, "role": "activation"}]
    graph = ms.Graph(tensors, [op], resident="3MB")
    assert (graph.resident, graph.tensors[0]["size"], graph.ops[0]["skip_workspace"]) == (3_000_000, 1000, 2000)
    assert graph.ops[0]["choices"] == [{"alg": "direct", "time": 2e-6, "workspace": 1000}]
    with pytest.raises(ms.InvalidInputError, match=r"tensors\[0\]: size is '1 cup', whose unit 'cup' is not"):
        ms.Graph([tensors[0] | {"size": "1 cup"}, tensors[1]], [op])


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


def test_alignments_take_texts_everywhere() -> None:
    plan = ms.greedy(CHAIN, HALF, 64e6)
    assert ms.place(plan, alignment="4KiB") == ms.place(plan, alignment=4096)
    assert ms.with_addresses(plan, alignment="4KiB").placement == ms.with_addresses(plan, alignment=4096).placement
    graph = ms.to_graph(CHAIN)
    placed = ms.olla(graph, "200%", alignment="4KiB", time_limit=1)
    assert placed.params["alignment"] == 4096
    assert placed.placement == ms.olla(graph, "200%", alignment=4096, time_limit=1).placement
    for call in (ms.place, ms.with_addresses):
        with pytest.raises(ms.InvalidInputError, match="alignment is 0; it must be"):
            call(plan, alignment="0 B")  # type: ignore[operator]


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


WIDE = ms.Chain([1, 1], [1, 1], [204_100_000, 204_100_000, 100], [0, 204_100_000, 100])  # an op needs three of them


@pytest.mark.parametrize("call", [ms.plan, ms.greedy, lambda *a: ms.compare(*a, planners=["greedy"])["greedy"]])
@pytest.mark.parametrize(
    ("memory", "has", "needs"),
    [
        ("500MB", "500 MB (500,000,000 bytes)", "612.3 MB (612,300,000 bytes)"),
        ("0.5 gb", "0.5 GB (500,000,000 bytes)", "0.6123 GB (612,300,000 bytes)"),
        ("0.5GiB", "0.5 GiB (536,870,912 bytes)", "0.5703 GiB (612,300,000 bytes)"),
        (500_000_000, "500 MB (500,000,000 bytes)", "612.3 MB (612,300,000 bytes)"),
        ("500e6", "500 MB (500,000,000 bytes)", "612.3 MB (612,300,000 bytes)"),
        (500_000_001, "477 MiB (500,000,001 bytes)", "584 MiB (612,300,000 bytes)"),
        (2**29, "512 MiB (536,870,912 bytes)", "584 MiB (612,300,000 bytes)"),
        ("1kB", "1 kB (1,000 bytes)", "612.3 MB (612,300,000 bytes)"),
        ("40", '40 B (did you mean "40%"?)', "584 MiB (612,300,000 bytes)"),
    ],
)
def test_errors_are_in_the_unit_that_was_written(call: Callable[..., Any], memory: Any, has: str, needs: str) -> None:
    assert ms.min_memory(WIDE) == ms.min_memory(WIDE, "greedy") == 612_300_000
    try:
        error = call(WIDE, memory, "12GB/s")
    except ms.InfeasibleError as raised:
        error = raised
    assert isinstance(error, ms.InfeasibleError)
    assert f"to {has}: " in str(error).replace(" in ", " to ")
    assert str(error).endswith(f"needs at least {needs}")


def test_percent_tells_both() -> None:
    with pytest.raises(ms.InfeasibleError) as caught:
        ms.dynprog(CHAIN, "40%")
    memory, peak = parse_memory("40%", CHAIN), ms.peak_memory(CHAIN)
    assert f" in 40% ({exact_bytes(memory).replace(' (', ', ')}: " in str(caught.value)
    assert str(caught.value).endswith(f" it needs at least 100% ({exact_bytes(peak).replace(' (', ', ')}")
    with pytest.raises(ms.InfeasibleError, match=r"rotor has no plan for 'chain' in 0% \(.* needs at least \d+"):
        ms.rotor(CHAIN, "0%")


@given(st.integers(0, 2**52), st.sampled_from(["", "kB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB"]))
def test_what_is_needed_may_be_typed(count: int, unit: str) -> None:
    told = exact_bytes(count, unit, up=True)
    text = told.split(" (")[0]
    assert count <= parse_bytes(text, forms="") <= 1.002 * count + 1
    assert "(" not in told or int(re.sub(r"\D", "", told.split("(")[1])) == count
    assert abs(parse_bytes(exact_bytes(count, unit).split(" (")[0]) - count) <= 1 + 0.006 * count


@given(st.integers(0, 100_000))
def test_a_percentage_that_is_needed_may_be_typed(more: int) -> None:
    count = ms.min_memory(CHAIN) + more
    assert parse_memory(told_bytes(count, "%", CHAIN, up=True).split(" (")[0], CHAIN) >= count


def test_the_unit_travels_with_the_bytes() -> None:
    some = parse_memory("1.5 gib", CHAIN)
    for one in (some, pickle.loads(pickle.dumps(some))):
        assert (one, one.unit, type(one)) == (3 * 2**29, "GiB", Bytes)
        assert f"{one}" == repr(one) == str(3 * 2**29)
    assert parse_memory("10%", CHAIN).unit == "%"
    assert parse_bytes(5).unit == parse_bytes("5 B").unit == ""


@pytest.mark.parametrize("method", ["search", "ilp"])
def test_a_capacity_is_told_in_its_unit(method: str) -> None:
    if method == "ilp":
        pytest.importorskip("highspy")
    buffers = [ms.Buffer(0, 2, "4MB"), ms.Buffer(1, 3, "4MB")]
    with pytest.raises(ms.InfeasibleError, match=r"8 MB \(8,000,000 bytes\).* 6 MB \(6,000,000 bytes\)"):
        ms.place(buffers, capacity="6MB", method=method)


def test_errors_name_the_planner_that_was_asked() -> None:
    for name in GRAPHS:
        with pytest.raises(ms.InfeasibleError, match=f"^{name} "):
            getattr(ms, name)(GRAPH, 1, "64MB/s")


def test_a_link_of_a_device_without_its_unit_is_told_once_where_it_was_given() -> None:
    slow = ms.Device("1GB", 12.2)
    for call in (ms.greedy, ms.plan, ms.bounds, lambda *a, **k: ms.compare(*a, planners=["greedy", "vdnn"], **k)):
        with pytest.warns(UserWarning, match=r"the device's link is 12\.2 B/s, .* such as 12GB/s") as told:
            call(CHAIN, "60%", device=slow)
        assert [Path(one.filename) for one in told] == [Path(__file__)]


@pytest.mark.parametrize("given", [{"beta": [12]}, {"device": ms.Device(1, 12)}])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_link_of_a_sweep_without_its_unit_is_told(given: dict[str, Any], executor: str) -> None:
    with pytest.warns(UserWarning, match=r" is 12 B/s, .* such as 12GB/s") as told:
        ms.sweep(CHAIN, ["greedy", "vdnn"], memory=["60%", "70%"], executor=executor, jobs=1, **given)
    assert [Path(one.filename) for one in told] == [Path(__file__)]


KEPT = {
    "Chain": CHAIN,
    "Graph": GRAPH,
    "GraphFamily": ms.GraphFamily(lambda batch: GRAPH, 1),
    "Device": ms.Device(1),
    "Schedule": ms.greedy(CHAIN, "50%", "64MB/s").schedule,
    "Result": ms.greedy(CHAIN, "50%", "64MB/s"),
    "Placement": ms.place([ms.Buffer(0, 1, 1)]),
}


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("other", KEPT)
def test_a_file_of_another_kind_says_what_it_is_and_what_reads_it(kind: str, other: str, tmp_path: Path) -> None:
    KEPT[kind].save(tmp_path / "x.json")
    reader = getattr(ms, other)
    read = reader.from_json if other == "Placement" else reader.load
    if kind == other:
        read(tmp_path / "x.json")
        return
    with pytest.raises(ms.InvalidInputError, match=rf"'.*x\.json' is an? .* \(format .*\), which {kind}\.\w+ and "):
        read(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "has no format; expected 'memsched-chain/1'"),
        ({"format": "memsched-chain/9"}, "of another version of memsched; expected 'memsched-chain/1'"),
        ({"format": "onnx"}, "none of memsched's; expected 'memsched-chain/1'"),
        ({"format": ["memsched-plan/1"]}, "none of memsched's"),
        ({"format": "memsched-torch-plan/1"}, "for an executor that left with version .*; plan the model again"),
        ({"format": "memsched-torch-plan/2"}, "a plan of a PyTorch model .*, which memsched.torch.TorchPlan.load"),
    ],
)
def test_other_formats_are_told(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        ms.Chain.from_json(document)


@pytest.mark.parametrize("unit", ["Gb", "Mb", "Kb", "kb", "Gib", "b"])
def test_bits_are_no_bytes_anywhere(unit: str) -> None:
    for call in (
        lambda: ms.Device(f"6{unit}"),
        lambda: ms.Device("6GB", f"6{unit}/s"),
        lambda: ms.greedy(CHAIN, f"6{unit}"),
        lambda: ms.greedy(CHAIN, "100%", chunk=f"6{unit}"),
        lambda: ms.Buffer(0, 1, f"6 {unit}"),
    ):
        with pytest.raises(ms.InvalidInputError, match=" reads as bits"):
            call()
    assert ms.Device("6gb", "6gb/s") == ms.Device(6e9, 6e9)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("graph:resnet18-224-b32", r"load_graph\('resnet18-224-b32'\) loads it"),
        ("analytic:vgg16:32", r"analytic\(network, batch, gpu\) makes it"),
        ("mine.json", "Chain.load or Graph.load reads it"),
        ("mine.csv", "Chain.from_csv reads it"),
        ("mine.onnx", "Graph.from_onnx reads it"),
    ],
)
def test_names_of_the_command_line_say_which_function_is_meant(name: str, remedy: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=remedy):
        ms.profiles.load(name)


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    tiny = ms.Chain([1], [1], [4, 4], [0, 4])
    assert repr(ms.frontier(tiny, planner="rotor", memory=["100%"])).startswith("Frontier(planner='rotor', problem=")
    assert "1 plan for 1 memory, " in repr(ms.frontier(tiny, planner="rotor", memory=["100%"]))
    assert repr(ms.compare(tiny, "100%", planners=["rotor"])).startswith("Comparison(1 planner, best")
    assert repr(ms.place([ms.Buffer(0, 1, 4)])).startswith("Placement(1 buffer, ")
    assert repr(ms.sweep(tiny, ["rotor"], memory=["100%"], beta=[8.0])).startswith("Sweep(1 point: 1 planned, ")


@given(st.integers(1, 500), st.integers(0, 30000))
def test_a_percentage_is_told_as_it_was_given(size: int, hundredths: int) -> None:
    """60 % of few bytes, rounded down to whole ones, was told as 59.38 %."""
    chain = ms.Chain([1, 1], [1, 1], [size] * 3, [0, size, size])
    given = f"{hundredths / 100}%"
    told = told_bytes(parse_memory(given, chain), "%", chain).split(" (")[0]
    assert parse_memory(told, chain) == parse_memory(given, chain)
    assert len(told) <= len(given)
