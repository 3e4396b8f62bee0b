"""What must hold of any document: an error of ours refuses it, or it is read, and so is all that it then goes through.

Each reader takes bytes. What breaks a promise raises `DefectError`, or whatever it raised.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import memsched as ms
from fuzzing import corpus
from memsched.problems.budget import parse_memory
from memsched.readers.snapshot import read_snapshot
from memsched.study.sources import named_problem, problem_from
from memsched.study.sweep import spec
from memsched.study.sweep.store import Store
from memsched.support import formats, units
from memsched.support.documents import Source

MOST_STEPS = 300  # of plans that go to the validator, which is slow on purpose
MOST_BUFFERS = 40  # that are placed


class DefectError(AssertionError):
    """A promise that a document broke."""


@cache
def _folder() -> Path:
    return corpus.scratch()


def _source(data: bytes) -> Source:
    """The document as a text where a reader takes it for one, else as a file."""
    with suppress(UnicodeDecodeError):
        text = data.decode("utf-8", "surrogatepass")
        if text.lstrip().startswith("{"):
            return text
    path = _folder() / "document"
    path.write_bytes(data)
    return path


def _same(what: str, value: Any, again: Any) -> None:
    if value != again:
        raise DefectError(f"{what} is {again!r:.200} after a round trip, not {value!r:.200}")


def _round_trip(value: Any) -> dict[str, Any]:
    """What is read can be written as strict JSON, and read again."""
    try:
        document: dict[str, Any] = value.to_json()
        text = json.dumps(document, allow_nan=False)
        json.dumps(document, ensure_ascii=False).encode()
        again = type(value).from_json(text)
    except (ms.MemschedError, TypeError, ValueError, RecursionError) as error:
        raise DefectError(f"an accepted document does not survive: {type(error).__name__}: {error}") from error
    _same("the document", document, again.to_json())  # of a family, the graphs that it is saved with
    repr(value)
    return document


def _judged(problem: Any, schedule: ms.Schedule, device: ms.Device) -> None:
    """The simulator and the validator say the same about a plan."""
    refusal = ""
    try:
        timeline = ms.simulate(problem, schedule, device)
    except ms.MemschedError as error:
        timeline, refusal = None, str(error)
    if timeline is not None:
        json.dumps(timeline.to_json(), allow_nan=False)
    if len(schedule) > MOST_STEPS or "2^63" in refusal or "finite" in refusal or len(schedule.rounds) > 20:
        return  # numbers that only the simulator has to count with
    try:
        report = ms.validate(problem, schedule, device)
    except ms.MemschedError as error:
        if timeline is not None:
            raise DefectError(f"simulate accepts what validate refuses: {error}") from error
        return
    if timeline is None:
        raise DefectError(f"validate accepts what simulate refuses: {refusal}")
    for key in ("makespan", "peak_memory", "recompute_time", "bytes_out", "bytes_in"):
        measured, found = getattr(timeline, key), getattr(report, key)
        if not math.isclose(measured, found, rel_tol=1e-9):
            raise DefectError(f"{key} is {measured} for simulate and {found} for validate")


def read_chain(data: bytes) -> None:
    """memsched-chain/1."""
    chain = ms.Chain.from_json(_source(data))
    _round_trip(chain)
    if ms.min_memory(chain, "greedy") > ms.peak_memory(chain):
        raise DefectError("the chain needs more than it takes")
    with suppress(ms.MemschedError):
        ms.to_graph(chain, chunk="storage")
    speed = (chain.provenance or {}).get("link_bandwidth")
    if speed is not None:
        with suppress(ms.MemschedError):
            _check_number(units.parse_bandwidth(speed), speed)


def read_graph(data: bytes) -> None:
    """memsched-graph/1."""
    graph = ms.Graph.from_json(_source(data))
    _round_trip(graph)
    ms.peak_memory(graph)
    if len(graph.ops) <= 12:
        ms.order(graph, time_limit=0.001)


def read_family(data: bytes) -> None:
    """memsched-family/1."""
    family = ms.GraphFamily.from_json(_source(data))
    _round_trip(family)
    ms.peak_memory(family)
    for batch in (family.batches or ())[:4]:
        with suppress(ms.MemschedError):
            family.at(batch)
    _round_trip(family)


def read_device(data: bytes) -> None:
    """memsched-device/1."""
    device = ms.Device.from_json(_source(data))
    _round_trip(device)
    _judged(corpus.chain(), _a_plan(), device)


@cache
def _a_plan() -> ms.Schedule:
    return next(result.schedule for result in corpus.results() if result.offloaded and result.schedule.chunk is None)


@cache
def _problems() -> dict[str, Any]:
    return corpus.problems()


def read_plan(data: bytes) -> None:
    """memsched-plan/1, and the problem that it was made for, or all of them."""
    schedule = ms.Schedule.from_json(_source(data))
    _round_trip(schedule)
    known = _problems()
    for problem in [known[schedule.graph]] if schedule.graph in known else known.values():
        _judged(problem, schedule, ms.Device(100, 2.0, latency=0.25))


def read_result(data: bytes) -> None:
    """memsched-result/2, with timeline and placement."""
    result = ms.Result.from_json(_source(data))
    _round_trip(result)
    for key in ("offloaded", "recomputed", "gap", "makespan", "peak_memory"):
        getattr(result, key)
    _judged(result.problem, result.schedule, result.device)
    if len(result.schedule) <= MOST_STEPS:
        with suppress(ms.MemschedError):
            ms.validate(result)
    if result.placement is not None:
        _check_placement(result.placement)


def read_placement(data: bytes) -> None:
    """memsched-placement/1."""
    placement = ms.Placement.from_json(_source(data))
    _round_trip(placement)
    _check_placement(placement)


def _check_placement(placement: ms.Placement) -> None:
    if type(placement.height) is not int:
        raise DefectError(f"height is {placement.height!r}")
    with suppress(ms.MemschedError):
        ms.validate_placement(placement.buffers, placement.offsets)
    with suppress(ms.MemschedError):
        placement.load, placement.fragmentation, placement.gap  # noqa: B018
    path = _folder() / "placed.csv"
    placement.to_csv(path)
    names = [str(k) if one.name is None else one.name for k, one in enumerate(placement.buffers)]
    if all(name.isprintable() and name == name.strip() and len(name) < 1000 for name in names):
        ids = [one.name or "" for one in ms.read_buffers(path)]
        _same("the number of ids", len(names), len(set(ids)))
        own = [k if k == name else k.rpartition("#")[0] for k, name in zip(ids, names, strict=True)]
        _same("the names", names, own)


def read_csv(data: bytes) -> None:
    """A table in MiniMalloc's format, which is placed if it is small."""
    path = _folder() / "buffers.csv"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an id that two lines have
        buffers = ms.read_buffers(path)
    if len(buffers) > MOST_BUFFERS:
        return
    with suppress(ms.MemschedError):
        placement = ms.place(buffers, time_limit=0.001)
        ms.validate_placement(placement.buffers, placement.offsets)
        _round_trip(placement)
        placement.to_csv(path)
        again = ms.read_buffers(path)
        _same("the height", placement.height, ms.place(again, time_limit=0.001).height)


def read_units(data: bytes) -> None:
    """A text that somebody typed or that stands in a document, as each of the things that it could be."""
    text = data.decode("utf-8", "replace")
    values: list[Any] = [text]
    with suppress(ValueError, RecursionError):
        values.append(json.loads(text))
    accepted = False
    for value in values:
        for parse in (units.parse_bytes, units.parse_bandwidth):
            with suppress(ms.MemschedError):
                _check_number(parse(value), value)
                accepted = True
        with suppress(ms.MemschedError):
            _check_number(parse_memory(value, _problems()["fuzz chain"]), value)
    for shorter in (units.parse_seconds, units.parse_chunk):
        with suppress(ms.MemschedError):
            shorter(text)
            accepted = True
    with suppress(ms.MemschedError):
        named_problem(text[:200])
        ms.profiles.load(text)
    if not accepted:
        raise ms.InvalidInputError("no parser takes it")


def _check_number(number: float, value: object) -> None:
    if isinstance(number, bool) or not number >= 0:
        raise DefectError(f"{value!r:.200} is read as {number!r}")
    (formats.format_bandwidth if isinstance(number, float) else formats.format_bytes)(number)


def read_spec(data: bytes) -> None:
    """The description of a sweep."""
    path = _folder() / "sweep.toml"
    path.write_bytes(data)
    repr(spec.read_spec(path))


def read_store(data: bytes) -> None:
    """The store of a sweep: what is accepted can be shown, and its problems read."""
    path = _folder() / "store.sqlite"
    path.write_bytes(data)
    table = ms.read_store(path)
    repr(table)
    for row in table:
        json.dumps(row, allow_nan=False)
    with suppress(ImportError):
        import pandas  # noqa: F401

        table.to_pandas()
    opened = Store(path, read_only=True)
    try:
        for key in {row["problem_key"] for row in table}:
            with suppress(ms.MemschedError):
                problem_from(opened.problem(key)[-1])
    finally:
        opened.close()


def read_chain_csv(data: bytes) -> None:
    """A table with one line per stage."""
    path = _folder() / "chain.csv"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a unit that may be missing
        _round_trip(ms.Chain.from_csv(path))


def read_a_snapshot(data: bytes) -> None:
    """A snapshot of PyTorch's allocator; what lives at one time has addresses of its own, and so a load."""
    path = _folder() / "snapshot.pickle"
    path.write_bytes(data)
    buffers = read_snapshot(path)
    if not all(0 <= one.start < one.end for one in buffers):
        raise DefectError(f"a buffer of {len(buffers)} lives for no time")
    if len(buffers) <= MOST_BUFFERS:
        with suppress(ms.MemschedError):
            _round_trip(ms.place(buffers, time_limit=0.001))


def read_onnx(data: bytes) -> None:
    """A model in the format ONNX, which becomes a training step."""
    path = _folder() / "model.onnx"
    path.write_bytes(data)
    graph = ms.Graph.from_onnx(path, dims={"N": 2})
    _round_trip(graph)
    if not graph.resident <= ms.min_memory(graph) <= ms.peak_memory(graph):
        raise DefectError("the graph needs more than it takes")


READERS: dict[str, Callable[[bytes], None]] = {
    "chain": read_chain,
    "graph": read_graph,
    "family": read_family,
    "device": read_device,
    "plan": read_plan,
    "result": read_result,
    "placement": read_placement,
    "csv": read_csv,
    "units": read_units,
    "spec": read_spec,
    "store": read_store,
    "chain_csv": read_chain_csv,
    "snapshot": read_a_snapshot,
    **({"onnx": read_onnx} if corpus.onnx() is not None else {}),
}


def accepts(reader: str, data: bytes) -> bool:
    """Whether the reader takes the document; False if it refuses it with an error of ours.

    Raises
    ------
    DefectError, or anything else but a `MemschedError`
        It breaks a promise.
    """
    try:
        READERS[reader](data)
    except ms.MemschedError as error:
        if not str(error).strip():
            raise DefectError("the error has no message") from error
        return False
    return True
