"""A plan for one device on another that has at least as much of everything."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from memsched._core import Device, Schedule
from memsched.arena.placement import Placement
from memsched.planners.call import measured
from memsched.problems.problem import Problem
from memsched.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is left of a plan without its problem and its times: enough to measure it again.

    It can be kept as long as the problem, for it does not keep the problem alive.
    """

    planner: str
    params: dict[str, Any]
    device: Device
    schedule: Schedule
    placement: Placement | None
    estimate: float | None
    recomputes: bool

    @classmethod
    def of(cls, plan: Result) -> Draft:
        """That of a result."""
        return cls(
            planner=plan.planner,
            params=plan.params,
            device=plan.device,
            schedule=plan.schedule,
            placement=plan.placement,
            estimate=plan.estimate,
            recomputes=plan.bound_on == "all",
        )

    def on(self, problem: Problem, device: Device) -> Result:
        """The same steps, measured on a device with no less memory, bandwidth or host memory, and no more latency.

        They run there, and take no longer: so docs/schedule.md, "No anomalies". params["planned_for"] says for which
        device they were planned.
        """
        began = time.perf_counter()
        result = measured(
            self.planner,
            {"planned_for": self.device.to_json(), **self.params},
            problem,
            self.schedule.with_budget(device.memory),
            device,
            began,
            estimate=self.estimate,
            recomputes=self.recomputes,
        )
        return replace(result, placement=self.placement)
