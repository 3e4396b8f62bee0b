"""One point of a sweep, measured: a flat row of numbers."""

from __future__ import annotations

from typing import Any, TypeAlias

from memsched.errors import InfeasibleError
from memsched.result import Result

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
