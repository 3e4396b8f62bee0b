"""What a result says about its plan, against what the validator found; apart from simulator and planners."""

from __future__ import annotations

import math
from typing import Any

from memsched.errors import ScheduleError

ROUNDING = 1e-9  # between two ways to sum


def check_result(result: Any, report: Any) -> None:
    """Compare timeline, addresses and bound of a result with a report on its plan.

    Raises
    ------
    ScheduleError
        They differ, or contradict each other; the message names the field.
    """
    timeline, keys = result.timeline, ("makespan", "peak_memory", "recompute_time", "bytes_out", "bytes_in")
    pairs = [(key, getattr(timeline, key), getattr(report, key)) for key in keys]
    pairs.append(("idle", timeline.idle, report.makespan - report.compute_time))
    for key, times in (("start", report.start), ("end", report.end)):
        said = [float(one) for one in getattr(timeline, key)]
        pairs.append((f"the length of {key}", len(said), len(times)))
        pairs += [(f"{key}[{k}]", one, other) for k, (one, other) in enumerate(zip(said, times, strict=False))]
    for key, one, other in pairs:
        slack = 0.0 if isinstance(other, int) else ROUNDING * report.makespan
        if not math.isclose(one, other, rel_tol=0.0, abs_tol=slack):
            raise ScheduleError(f"{key} of the result is {one}, of the schedule {other}; simulate it again.")
    if not 0 <= result.lower_bound <= report.makespan * (1 + ROUNDING):
        raise ScheduleError(f"The lower_bound is {result.lower_bound}, but the plan takes {report.makespan}.")
    if result.placement is not None and result.schedule.memory == "contiguous":
        _check_addresses(result)


def _check_addresses(result: Any) -> None:
    """The placement has the addresses that stand in the steps."""
    steps = result.schedule.to_json()["steps"]
    for buffer, offset in zip(result.placement.buffers, result.placement.offsets, strict=True):
        step = steps[int(buffer.start)]
        at = step.get("at", {}) if "run" in step else {step.get("prefetch"): step.get("at")}
        stays = not buffer.size or buffer.start == 0  # inputs and weights, which lie where they must
        known = at.get(buffer.name or "", offset if stays else None)
        if known != offset:
            what = buffer.name or "the workspace"
            raise ScheduleError(
                f"placement of the result has {what!r} at {offset}, step {buffer.start} at {known}; place it again."
            )
