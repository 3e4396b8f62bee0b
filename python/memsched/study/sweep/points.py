"""The points of a sweep: problems x devices x planners. The key of a point covers all that its result depends on."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memsched import _core
from memsched._core import Chain, Device
from memsched.errors import InvalidInputError, LimitError
from memsched.planners.entry import options_of
from memsched.planners.registry import PLANNERS
from memsched.planners.remat.recompute import most_slots
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, graph_of, name_of, peak_memory
from memsched.study.auto import plan_of
from memsched.study.options import OURS, names_of, refuse_unknown
from memsched.support.documents import Document, write_device

# Over the peak: at least as fine as a planner's default 500 for memories above a quarter of the peak.
MOST_TABLE_SLOTS = 2000
MOST_POINTS = 1_000_000  # of one sweep; their rows take some gigabytes
_MEMORY = "\0the memory\0"  # placeholder for the memory of a device
_OURS = (*OURS, "threads")  # a sweep sets these itself


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptProblem:
    """A problem and what identifies it."""

    problem: Problem
    source: str | None  # a name by which any process can load it; None: the problem itself must be sent
    key: str  # hash of its content, without its name
    ideal: float  # seconds of computation with the fastest algorithms and enough memory

    @property
    def name(self) -> str:
        """A name to show."""
        return name_of(self.problem)

    @property
    def document(self) -> bytes:
        """Its JSON form, compressed."""
        return zlib.compress(json.dumps(written(self.problem)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Points that differ only in the device."""

    problem: SweptProblem
    planner: str
    options: dict[str, Any]  # the planner's options as given
    # Slots, over the plain peak, of the table that answers all memories; None if points share no table.
    table_slots: int | None
    version: str  # memsched's version
    devices: tuple[Device, ...]
    keys: tuple[str, ...]  # one per device

    def only(self, places: Sequence[int]) -> Group:
        """The group with some of its points."""
        devices = tuple(self.devices[at] for at in places)
        return replace(self, devices=devices, keys=tuple(self.keys[at] for at in places))


def swept_problem(problem: Problem, source: str | None = None) -> SweptProblem:
    """Identify a problem by its content. Of a family made by a function, that is its graphs at powers of two.

    Without a name, such a family is swept with these graphs alone, so that rows are of what identifies them. With one,
    it has graphs at all batches, and the name is a part of what identifies it.
    """
    document = written(problem)
    by_function = isinstance(problem, GraphFamily) and problem.batches is None
    if by_function and source is None:
        problem = GraphFamily.from_json(document)
    return SweptProblem(
        problem=problem,
        source=source,
        key=content_key(document, source if by_function else None),
        ideal=_core.compute_time(graph_of(problem)),
    )


def written(problem: Problem) -> Document:
    """The JSON form of a problem that a store keeps: of a family its stored batches, or a sample of all."""
    if not isinstance(problem, GraphFamily):
        return problem.to_json()
    return problem.to_json(problem.batches or [2**power for power in range(problem.batch.bit_length())])


def content_key(document: Document, source: str | None = None) -> str:
    """The key of a problem: a hash of its JSON form without its name, and of what made it, if given.

    Of a profile's provenance only the link counts, from which `plan` takes links to try, too.
    """
    content = {key: value for key, value in document.items() if key not in ("name", "provenance")}
    link = (document.get("provenance") or {}).get("link_bandwidth")
    more = {"source": source, "link_bandwidth": link}
    content |= {name: value for name, value in more.items() if value is not None}
    return _hashed(json.dumps(content, sort_keys=True))


def known_keys(document: Document, source: str | None) -> set[str]:
    """The keys that a problem may have in a store, as this and earlier versions write it."""
    earlier = {name: value for name, value in document.items() if name != "provenance"}
    return {content_key(document), content_key(document, source), content_key(earlier)}


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def link_of(device: Device) -> Hashable:
    """All of a device but its memory."""
    return (device.d2h, device.h2d, device.duplex, device.latency, device.host_memory, device.name)


def _keys(shared: Mapping[str, Any], devices: Sequence[Device]) -> Iterator[str]:
    """The hash of {**shared, "device": device} for each. Devices that differ only in memory share most of the work."""
    texts: dict[Hashable, list[str]] = {}
    for device in devices:
        link = link_of(device)
        if link not in texts:
            document = {**write_device(device), "name": None, "memory": _MEMORY}
            # What is shared may hold the placeholder's text, but "device" comes first.
            text = json.dumps({**shared, "device": document}, sort_keys=True)
            texts[link] = text.split(json.dumps(_MEMORY), maxsplit=1)
        before, after = texts[link]
        yield _hashed(f"{before}{device.memory}{after}")


def taken(planner: str) -> list[str]:
    """The options that a planner takes in a sweep."""
    return names_of(plan_of(planner), *_OURS)


def check_options(planner: str, given: Mapping[str, Any]) -> None:
    """Refuse options that the planner does not take; the error lists those that it takes."""
    for name in given:
        if name in _OURS:
            raise InvalidInputError(f"a sweep sets the option {name!r} itself; leave it out")
    refuse_unknown(planner, plan_of(planner), given, *_OURS)


def table_slots(problem: Problem, planner: str, options: Mapping[str, Any], wanted: int | None) -> int | None:
    """Slots of the shared table; None if the planner cannot use one with these options."""
    with_table = None if planner == "auto" else PLANNERS[planner].with_table
    if with_table is None or not isinstance(problem, Chain):
        return None
    if any(name not in options_of(with_table) for name in options):
        return None
    return wanted or min(MOST_TABLE_SLOTS, most_slots(problem))


def group(
    problem: SweptProblem,
    planner: str,
    options: Mapping[str, Any],
    slots: int | None,
    devices: Sequence[Device],
    version: str,
) -> Group:
    """Make a group and the key of each of its points."""
    table = None if slots is None else {"slots": slots, "memory": peak_memory(problem.problem)}
    same: dict[str, Any] = {"planner": planner, "options": dict(options), "version": version}
    keys = tuple(_keys({"problem": problem.key, "table": table, **same}, devices))
    return Group(problem=problem, table_slots=slots, devices=tuple(devices), keys=keys, **same)


def check_count(pairs: int, memories: int, links: int) -> None:
    """Refuse more points than a sweep may have, before any is made: LimitError."""
    points = pairs * memories * links
    if points > MOST_POINTS:
        raise LimitError(
            f"{pairs} pairs of problem and planner x {memories} memories x {links} bandwidths are {points} points "
            f"or more, and a sweep has at most {MOST_POINTS}; give shorter lists, the rest into the same store"
        )


def check_kind(problem: Problem, planner: str) -> None:
    """Refuse a planner of chains for other problems."""
    if planner == "auto" or isinstance(problem, Chain) or PLANNERS[planner].takes_graphs:
        return
    kind = "family of graphs" if isinstance(problem, GraphFamily) else "graph"
    raise InvalidInputError(
        f"{planner} plans chains, and '{problem.name}' is a {kind}; "
        "sweep it on its own, with planners of graphs, or leave planners out to take those of each problem"
    )
