"""One point of a sweep, measured: a flat row of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from memsched.errors import InfeasibleError
from memsched.result import Result, gap_above

Row: TypeAlias = dict[str, Any]

# Column -> its type in SQLite. None where a point has no plan, or where its planner has no such number.
MEASURES: dict[str, str] = {
    "makespan": "REAL",
    "lower_bound": "REAL",
    "gap": "REAL",
    "optimal": "INTEGER",
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

_PLANNED = ("makespan", "lower_bound", "gap", "optimal", "peak_memory", "bytes_out", "bytes_in", "idle", "runtime")
# Status -> the measures that such a point has in any case.
STATUSES: dict[str, tuple[str, ...]] = {
    "planned": (*_PLANNED, "recompute_time", "offloaded", "recomputed"),
    "infeasible": ("min_memory", "error"),
    "failed": ("error",),
}


def planned(result: Result) -> Row:
    """The measures of a plan."""
    timeline = result.timeline
    return {
        "status": "planned",
        "makespan": timeline.makespan,
        "lower_bound": result.lower_bound,
        "gap": result.gap,
        "optimal": result.optimal,
        "peak_memory": timeline.peak_memory,
        "estimate": result.estimate,
        "bytes_out": timeline.bytes_out,
        "bytes_in": timeline.bytes_in,
        "idle": timeline.idle,
        "recompute_time": timeline.recompute_time,
        "offloaded": len(result.offloaded),
        "recomputed": len(result.recomputed),
        "runtime": result.runtime,
    }


def unplanned(error: BaseException) -> Row:
    """The measures of a point without a plan: nothing fits, or the planner failed."""
    if isinstance(error, InfeasibleError):
        return {"status": "infeasible", "min_memory": error.min_memory, "error": str(error)}
    return {"status": "failed", "error": f"{type(error).__name__}: {error}"}


def contradiction(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """A figure of a planned row that others of the row contradict, and what it must be; None where none does.

    That is all that a row can prove: its makespan and its bound are what the sweep claims.
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
    if row["peak_memory"] is not None and not 0 <= row["peak_memory"] <= row["memory"]:
        return "peak_memory", f"at least 0 and at most the memory, {row['memory']!r}"
    for key in ("bytes_out", "bytes_in", "idle", "recompute_time", "offloaded", "recomputed", "runtime"):
        if row[key] is not None and not row[key] >= 0:
            return key, "a number >= 0"
    return None
