"""Move a plan for one device to another that is at least as good in every respect."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from memsched._core import Device, Schedule
from memsched.arena.placement import Placement
from memsched.planners.call import measured
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support.documents import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan without its problem and timeline: what is needed to simulate it again.

    It holds no reference to the problem, so caching it with a problem does not keep the problem alive.
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
        """The draft of a result."""
        kept = fields(plan, "planner", "params", "device", "schedule", "placement", "estimate")
        return cls(**kept, recomputes=plan.bound_on == "all")

    def on(self, problem: Problem, device: Device) -> Result:
        """The same steps, simulated on a device with no less memory, bandwidth or host memory and no more latency.

        They run there and take no longer (docs/schedule.md, "No anomalies"). params["planned_for"] is the device that
        they were planned for.
        """
        began = time.perf_counter()
        return measured(
            self.planner,
            {"planned_for": self.device.to_json(), **self.params},
            problem,
            self.schedule.with_budget(device.memory),
            device,
            began,
            estimate=self.estimate,
            recomputes=self.recomputes,
            placement=self.placement,
        )
