"""One measured point of a sweep: a flat row of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from memsched._core import Device
from memsched.errors import InfeasibleError, InvalidInputError, shown
from memsched.problems.bounds import BOUND_ON
from memsched.problems.problem import Problem, name_of
from memsched.result import Result, gap_above
from memsched.support.documents import read_device

Row: TypeAlias = dict[str, Any]
ReadRow: TypeAlias = Mapping[str, Any]  # a row from the user

# Column -> its SQLite type. NULL if the point has no plan, or its planner no such number.
MEASURES: dict[str, str] = {
    "makespan": "REAL",
    "lower_bound": "REAL",
    "gap": "REAL",
    "optimal": "INTEGER",
    "bound_on": "TEXT",
    "peak_memory": "INTEGER",
    "estimate": "REAL",
    "bytes_out": "INTEGER",
    "bytes_in": "INTEGER",
    "idle": "REAL",
    "recompute_time": "REAL",
    "offloaded": "INTEGER",
    "recomputed": "INTEGER",
    "runtime": "REAL",
    "min_memory": "INTEGER",
    "error": "TEXT",
}

# Status -> the columns that such a point always has.
STATUSES: dict[str, tuple[str, ...]] = {
    "planned": tuple(name for name in MEASURES if name not in ("bound_on", "estimate", "min_memory", "error")),
    "infeasible": ("min_memory", "error"),
    "failed": ("error",),
}

# What a point without a plan lacks.
_FIGURES = (
    *("makespan", "lower_bound", "peak_memory", "estimate"),
    *("bytes_out", "bytes_in", "idle", "offloaded", "runtime"),
)
MOST_SLOTS = 1_000_000  # of a shared table
_TEXTS = ("problem", "planner", "status")
_MORE_TEXTS = ("key", "problem_key", "version", "error")  # None, or missing, if there is none
_NUMBERS = ("memory", "bandwidth")
_MEASURES = (*(name for name, kind in MEASURES.items() if kind != "TEXT"), "ideal")
_AMOUNT = "a number >= 0, and below 2^63 if it is an integer"
_KEYS = (*_TEXTS, *_NUMBERS, "options", *_MEASURES, "error")


def point_of(problem: Problem, device: Device) -> Row:
    """What is planned for, beside the memory."""
    return {"problem": name_of(problem), "bandwidth": device.d2h}


def planned(result: Result) -> Row:
    """The figures of a plan."""
    timeline = result.timeline
    figures = (
        *(timeline.makespan, result.lower_bound, timeline.peak_memory, result.estimate),
        *(timeline.bytes_out, timeline.bytes_in, timeline.idle, len(result.offloaded), result.runtime),
    )
    more = {"recompute_time": timeline.recompute_time, "recomputed": len(result.recomputed)}
    return figured(figures) | {"bound_on": result.bound_on, **more}


def figured(figures: tuple[Any, ...]) -> Row:
    """The same from figures alone, in the order of the core, of a plan that recomputes nothing."""
    makespan, bound, peak, estimate, sent, fetched, idle, offloaded, runtime = figures
    return {
        "status": "planned",
        "makespan": makespan,
        "lower_bound": bound,
        "peak_memory": peak,
        "estimate": estimate,
        "bytes_out": sent,
        "bytes_in": fetched,
        "idle": idle,
        "offloaded": offloaded,
        "runtime": runtime,
        "gap": gap_above(bound, makespan),
        "optimal": makespan <= bound * (1 + 1e-12),
        "bound_on": "once",
        "recompute_time": 0.0,
        "recomputed": 0,
    }


def unplanned(error: BaseException) -> Row:
    """The figures of a point without a plan: nothing fits, or the planner failed."""
    if isinstance(error, InfeasibleError):
        return {"status": "infeasible", "min_memory": error.min_memory, "error": str(error)}
    return {"status": "failed", "error": f"{type(error).__name__}: {error}"}


def is_option(name: object, value: object) -> bool:
    """Whether an option of a sweep may have this form: its value is short, and finite if it is a number."""
    if isinstance(value, int):
        fine = abs(value) < 2**63
    elif isinstance(value, float):
        fine = math.isfinite(value)
    else:
        fine = value is None or (isinstance(value, str) and len(value) < 1000)
    return fine and isinstance(name, str)


def device_of(row: ReadRow) -> Device:
    """The device of a row; its memory and bandwidth stand for what `device` lacks."""
    memory, speed, given = row["memory"], row["bandwidth"], row.get("device")
    if not isinstance(given, Mapping | None):
        raise InvalidInputError("it must be a mapping")
    shared = {"format": "memsched-device/1", "memory": memory, "d2h": speed, "h2d": speed}
    device = read_device({**shared, **(given or {})})
    if device.memory != memory or device.d2h != speed:
        raise InvalidInputError(f"these are {shown(memory)} and {shown(speed)}")
    return device


def fault(row: ReadRow) -> tuple[str, str] | None:
    """A value of a row that no sweep writes, and what it must be; None if there is none."""
    if not all(is_option(*one) for one in row["options"].items()):
        return "options", "a mapping: option -> finite number, text, true, false or None, each short"
    slots = row.get("table_slots")
    if slots is not None and (type(slots) is not int or not 1 <= slots <= MOST_SLOTS):
        return "table_slots", f"a whole number from 1 to {MOST_SLOTS}, or None"
    try:
        device_of(row)
    except InvalidInputError as error:
        return "device", f"the device of its memory and bandwidth, but {error}"
    if row["status"] == "planned":
        return _contradiction(row)
    extra = next((key for key in (*_FIGURES, "gap", "optimal") if row.get(key) is not None), None)
    return None if extra is None else (extra, "None, as there is no plan")


def _contradiction(row: ReadRow) -> tuple[str, str] | None:
    """A figure of a planned row that contradicts others in the row, and what it must be; None if there is none.

    No more can be checked in a row: its makespan and its bound are claims of the sweep.
    """
    makespan, bound = row["makespan"], row["lower_bound"]
    if not 0 <= makespan < math.inf:
        return "makespan", "a number of seconds >= 0"
    if not 0 <= bound <= makespan * (1 + 1e-9):
        return "lower_bound", f"at least 0 and at most the makespan, {makespan!r}"
    meets = makespan <= bound * (1 + 1e-12)
    if bool(row["optimal"]) is not meets:
        return "optimal", f"{meets}, by makespan and lower_bound"
    gap = gap_above(bound, makespan)
    if row["gap"] is None or not math.isclose(row["gap"], gap, rel_tol=1e-9, abs_tol=1e-9):
        return "gap", f"{gap!r}, by makespan and lower_bound"
    if row.get("bound_on") not in (None, *BOUND_ON):  # None: of a store of version 1
        return "bound_on", f"{' or '.join(BOUND_ON)}"
    if row["peak_memory"] is not None and not 0 <= row["peak_memory"] <= row["memory"]:
        return "peak_memory", f"at least 0 and at most the memory, {row['memory']!r}"
    for key in ("bytes_out", "bytes_in", "idle", "recompute_time", "offloaded", "recomputed", "runtime"):
        if row[key] is not None and not row[key] >= 0:
            return key, "a number >= 0"
    if row["idle"] is not None and row["idle"] > makespan * (1 + 1e-9):
        return "idle", f"at most the makespan, {makespan!r}"
    return None


def checked(rows: Sequence[ReadRow]) -> list[ReadRow]:
    """Check that the rows have everything that reports and plots need; the error names row, key and value."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise InvalidInputError(f"rows is {shown(rows)}; give a list, as the rows of a Sweep are")
    for at, row in enumerate(rows):
        where = f"row {at} of the sweep"
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"{where} is {shown(row)}; it must be a mapping")
        missing = next((key for key in _KEYS if key not in row), None)
        if missing is not None:
            raise InvalidInputError(f"{where} lacks '{missing}'; write it, or give what memsched.read_store reads")
        wrong = next(((key, what) for key, fine, what in _forms(row) if not fine), None) or fault(row)
        if wrong is not None:
            key, what = wrong
            raise InvalidInputError(f"{key} of {where} is {shown(row.get(key))}; it must be {what}")
    return list(rows)


def _forms(row: ReadRow) -> Iterator[tuple[str, bool, str]]:
    """The keys of a row, each with whether its value has the right form, and what that is."""
    yield from ((key, isinstance(row[key], str), "a string") for key in _TEXTS)
    yield from ((key, isinstance(row.get(key), str | None), "a string or None") for key in _MORE_TEXTS)
    yield "status", row["status"] in STATUSES, f"one of {', '.join(STATUSES)}"
    yield "options", isinstance(row["options"], Mapping), "a mapping"
    numbers = (*_NUMBERS, *(("makespan", "lower_bound", "runtime") if row["status"] == "planned" else ()))
    yield from ((key, _is_number(row[key]), _AMOUNT) for key in numbers)
    yield from ((key, row[key] is None or _is_number(row[key]), f"{_AMOUNT}, or None") for key in _MEASURES)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0 and (isinstance(value, float) or value < 2**63)
