"""Compare a result's statements about its plan with the findings of the validator; independent of the simulator."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from memsched.errors import ScheduleError
from memsched.validation.placement import validate_placement

Stay: TypeAlias = tuple[str, int, int, int]  # name ("": a workspace), first step, step after the last, bytes

ROUNDING = 1e-9  # relative, between two orders of summation


def check_result(result: Any, report: Any, memory: Sequence[tuple[float, int]], stays: Sequence[Stay]) -> None:
    """Compare timeline, placement and bound of a result with a report on its plan: ScheduleError if they differ.

    memory: bytes after each event of the first round. stays: the buffers of the plan in steps, in the round with the
    most.
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
    moments, held = timeline.memory
    curve = [(float(moment), int(one)) for moment, one in zip(moments, held, strict=True)]
    _check_memory(curve, memory, report.peak_memory, ROUNDING * report.makespan)
    if result.placement is not None:
        _check_buffers(result.placement, stays)
        if result.schedule.memory == "contiguous":
            _check_addresses(result)


def _check_memory(
    said: Sequence[tuple[float, int]], memory: Sequence[tuple[float, int]], peak: int, slack: float
) -> None:
    """Check that bytes agree wherever no event is near, that none exceed the peak, and that times increase."""
    times = [moment for moment, _ in said]
    if times != sorted(times) or not all(0 <= bytes_ <= peak for _, bytes_ in said):
        raise ScheduleError(f"memory of the result must increase in time, up to the peak, {peak}; simulate it again.")
    for (moment, here), (later, _) in zip(memory, (*memory[1:], (math.inf, 0)), strict=True):
        if later - moment > 2 * slack:
            middle = moment + slack if later == math.inf else (moment + later) / 2
            at = middle if middle < later else moment  # between two doubles there may be none
            before = bisect_right(times, at)
            found = said[before - 1][1] if before else None
            if found != here:
                raise ScheduleError(
                    f"memory of the result is {found} at {at}, of the schedule {here}; simulate it again."
                )


def _check_buffers(placement: Any, stays: Sequence[Stay]) -> None:
    """Check that the placement has the buffers of the schedule, and that no two overlap."""
    placed = Counter((one.name or "", one.start, one.end, one.size) for one in placement.buffers if one.size)
    held = Counter(stay for stay in stays if stay[3])
    if placed != held:
        name, start, end, size = next(iter((placed - held) + (held - placed)))
        raise ScheduleError(
            f"buffers of the placement are not what the schedule holds: {name or 'a workspace'!r} of {size} bytes from "
            f"step {start} to {end} is in only one of them; place the result again."
        )
    validate_placement(placement.buffers, placement.offsets)


def _check_addresses(result: Any) -> None:
    """Check that the placement has the addresses given in the steps."""
    steps = result.schedule.to_json()["steps"]
    for buffer, offset in zip(result.placement.buffers, result.placement.offsets, strict=True):
        step = steps[int(buffer.start)]
        at = step.get("at", {}) if "run" in step else {step.get("prefetch"): step.get("at")}
        stays = not buffer.size or buffer.start == 0  # inputs and weights have fixed addresses
        known = at.get(buffer.name or "", offset if stays else None)
        if known != offset:
            what = buffer.name or "the workspace"
            raise ScheduleError(
                f"placement of the result has {what!r} at {offset}, step {buffer.start} at {known}; place it again."
            )
