"""A plan for one device on another that has at least as much of everything."""

from __future__ import annotations

import dataclasses
import time

from memsched._core import Device, Schedule
from memsched.planners.base import measured
from memsched.result import Result


def carried(plan: Result, device: Device) -> Result:
    """The same steps, measured on a device with no less memory, bandwidth or host memory, and no more latency.

    They run there, and take no longer: so docs/schedule.md, "No anomalies". params["planned_for"] says for which
    device they were planned.
    """
    began = time.perf_counter()
    schedule = Schedule.from_json({**plan.schedule.to_json(), "budget": device.memory})
    result = measured(
        plan.planner,
        {"planned_for": plan.device.to_json(), **plan.params},
        plan.problem,
        schedule,
        device,
        began,
        estimate=plan.estimate,
        recomputes=plan.bound_on == "all",
    )
    return dataclasses.replace(result, placement=plan.placement)
