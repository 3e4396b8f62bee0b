"""What the rows of a sweep are about, and how it is called: problems, links, and planners with their options."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memsched._core import Device
from memsched.study.sweep.rows import ReadRow as Row
from memsched.support.documents import bandwidth_from_json
from memsched.support.formats import format_bandwidth, format_bytes, format_link

_UNITS = {"bandwidth": "B/s", "seconds": "s", "bytes": "B"}


def problem_of(row: Row) -> tuple[str, str]:
    """What rows on the same problem have in common."""
    return row.get("problem_key") or "", row["problem"]


def link_of(row: Row) -> tuple[Any, ...]:
    """What rows on the same link have in common: all of the device but its memory, its name, and what has no effect."""
    device = row.get("device") or {}
    there, back = row["bandwidth"], bandwidth_from_json(device.get("h2d", row["bandwidth"]))
    if there == back == 0:
        return there, back, False, 0.0, None
    duplex, latency = device.get("duplex", False), device.get("latency", 0.0)
    return there, back, duplex and not (there == back == math.inf and not latency), latency, device.get("host_memory")


def point_of(row: Row) -> tuple[Any, ...]:
    """What rows have in common whose plans can be compared."""
    return problem_of(row), link_of(row), row["memory"]


def problem_names(rows: Sequence[Row]) -> list[str]:
    """The name of each row's problem, with its key if several have the name."""

    def words(row: Row) -> Iterator[str]:
        key, name = problem_of(row)
        yield from (name, f"{name} (key {key[:8]})", f"{name} (key {key})")

    return _names(rows, problem_of, words)


def link_names(rows: Sequence[Row]) -> list[str]:
    """The bandwidth of each row's link, with the rest of the device if several have the bandwidth."""

    def words(row: Row) -> Iterator[str]:
        there, back, duplex, latency, host = link_of(row)
        device = Device(1, d2h=there, h2d=back, duplex=duplex, latency=latency, host_memory=host)
        yield format_bandwidth(there) + (", duplex" if duplex else "")
        yield format_link(device)
        yield format_link(device, lambda kind, value: f"{value!r} {_UNITS[kind]}")

    return _names(rows, link_of, words)


def planner_names(rows: Sequence[Row]) -> list[str]:
    """The name of each row's planner, with options if it has several sets of them.

    The slots of a shared table and the version count only if they differ on one problem, on which the slots depend.
    """
    runs: dict[Any, set[Any]] = defaultdict(set)
    for row in rows:
        runs[_asked(row), problem_of(row)].add(_ran(row))
    several = {asked for (asked, _), ran in runs.items() if len(ran) > 1}

    def planner_of(row: Row) -> tuple[Any, ...]:
        return (_asked(row), *(_ran(row) if _asked(row) in several else ()))

    def words(row: Row) -> Iterator[str]:
        planner, given, (_, *ran) = row["planner"], sorted(row["options"].items()), planner_of(row)
        table = (", no shared table" if ran[0] is None else f", shared table of {ran[0]} slots") if ran else ""
        version = f", memsched {ran[1]}" if ran else ""
        sizes = {key: format_bytes(value) for key, value in given if key == "chunk" and isinstance(value, int)}
        short = [f"{key}={sizes.get(key, value)}" for key, value in given]
        exact = [f"{key}={value!r}" for key, value in given]
        yield planner
        for told in (short, exact):
            options = ", ".join(told) or "defaults"
            yield from (f"{planner} ({options})", f"{planner} ({options}{table})")
        yield f"{planner} ({options}{table}{version})"

    return _names(rows, planner_of, words)


def _asked(row: Row) -> tuple[str, str]:
    """The planner and its options."""
    return row["planner"], repr(sorted(row["options"].items()))


def _ran(row: Row) -> tuple[Any, Any]:
    """What else the plan depends on."""
    return row.get("table_slots"), row.get("version")


def _names(
    rows: Sequence[Row], of: Callable[[Row], tuple[Any, ...]], words: Callable[[Row], Iterator[str]]
) -> list[str]:
    """The first of the words for what each row is of that are for nothing else; the last words say everything."""
    keys = [of(row) for row in rows]
    told = {key: dict.fromkeys(words(row)) for key, row in dict(zip(keys, rows, strict=True)).items()}
    count = Counter(text for texts in told.values() for text in texts)
    names = {key: next((one for one in texts if count[one] == 1), [*texts][-1]) for key, texts in told.items()}
    return [names[key] for key in keys]
