"""Where parameters and states are between two steps: on the device or on the host, in no executed plan on both.

Whoever writes to one between two steps makes one of two copies stale, and nobody is told of writes through `.data` or
by fused kernels. So there is only one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from memsched._core import Graph, Schedule
from memsched.planners.call import measured
from memsched.problems.bounds import certified
from memsched.result import Result

Step = dict[str, Any]


def on_one_side(result: Result) -> Result:
    """A plan of a step as one whose persistent tensors are on one side between steps, simulated anew."""
    schedule, graph = result.schedule, result.problem
    both = [name for name, where in schedule.border.items() if where == "both"]
    if not both:
        return result
    assert isinstance(graph, Graph)
    steps: list[Step] = [*schedule.steps]
    border, began = dict(schedule.border), time.perf_counter()
    for name in both:
        steps, border[name] = _moved(steps, name, graph)
    made = Schedule(steps, budget=schedule.budget, graph=graph.name, planner={"name": result.planner}, border=border)
    found = measured(result.planner, dict(result.params), graph, made, result.device, began, recomputes=True)
    if result.bound_on != "all":
        return found
    bound = certified(max(found.lower_bound, result.lower_bound), found.timeline.makespan)
    return dataclasses.replace(found, lower_bound=bound)


def _moved(steps: Sequence[Step], name: str, graph: Graph) -> tuple[list[Step], str]:
    """The steps of a repetition with a transfer of a tensor on the other side of the border, and where it is there.

    A fetch at the end becomes one at the beginning. What stays on the device is copied to the host at the beginning,
    not before the border.
    """
    reading = {op["name"] for op in graph.ops if name in op["reads"]}
    updating = {op["name"] for op in graph.ops if name in op.get("updates", ())}
    touching = [k for k, step in enumerate(steps) if name in step.values() or step.get("run") in reading]
    last = touching[-1]
    if steps[last].get("prefetch") == name:
        return [steps[last], *steps[:last], *steps[last + 1 :]], "host"
    kept = list(steps)
    if steps[last].get("offload") == name and any(steps[k].get("run") in updating for k in touching):
        del kept[last]
    return [{"offload": name}, *kept], "device"
