"""Where parameters and states are between two steps: on the device or on the host, in no executed plan on both.

Whoever writes to one between two steps makes one of two copies stale, and nobody is told of writes through `.data` or
by fused kernels. So there is only one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memsched._core import Graph, Schedule
from memsched.planners.call import measured
from memsched.problems.bounds import certified
from memsched.problems.problem import simulate
from memsched.result import Result

Step = dict[str, Any]
Side = Callable[[Sequence[Step], str, Graph], tuple[list[Step], str]]
_STEPS = 100_000  # that are simulated at most to choose, one tensor at a time


def on_one_side(result: Result) -> Result:
    """A plan of a step as one whose persistent tensors are on one side between steps, simulated anew.

    Of each the faster side is taken, or of all together where there are many.
    """
    schedule, graph = result.schedule, result.problem
    both = [name for name, where in schedule.border.items() if where == "both"]
    if not both:
        return result
    assert isinstance(graph, Graph)
    both.sort(key=lambda name: _touching(schedule.steps, name, graph))  # who is read first comes first
    began = time.perf_counter()

    def made(steps: Sequence[Step], border: Mapping[str, str]) -> Schedule:
        return Schedule(
            steps, budget=schedule.budget, graph=graph.name, planner={"name": result.planner}, border=dict(border)
        )

    def moved(known: Schedule, names: Sequence[str], side: Side) -> Schedule:
        steps, border = list(known.steps), dict(known.border)
        for name in names:
            steps, border[name] = side(steps, name, graph)
        return made(steps, border)

    found = schedule
    one_by_one = 2 * len(both) * len(schedule.steps) <= _STEPS
    for names in [[name] for name in both] if one_by_one else [both]:
        tried = [moved(found, names, side) for side in (_on_host, _on_device)]
        found = min(tried, key=lambda one: simulate(graph, one, result.device).makespan)
    new = measured(result.planner, dict(result.params), graph, found, result.device, began, recomputes=True)
    if result.bound_on != "all":
        return new
    return dataclasses.replace(
        new, lower_bound=certified(max(new.lower_bound, result.lower_bound), new.timeline.makespan)
    )


def _on_host(steps: Sequence[Step], name: str, graph: Graph) -> tuple[list[Step], str]:
    """The steps of a repetition at whose end a tensor is not on the device, and where it is then.

    Its last fetch becomes one at the beginning; what stayed on the device is freed, and fetched there.
    """
    kept, last = list(steps), _touching(steps, name, graph)[-1]
    if steps[last].get("prefetch") == name:
        del kept[last]
    else:
        kept.append({"free": name})
    first = next(k for k, step in enumerate(kept) if "run" in step)
    return [*kept[:first], {"prefetch": name}, *kept[first:]], "host"


def _on_device(steps: Sequence[Step], name: str, graph: Graph) -> tuple[list[Step], str]:
    """The steps of a repetition that copies a tensor to the host at its beginning, and where it is at its end.

    A copy that was made after its update is not made before the border.
    """
    kept, touching = list(steps), _touching(steps, name, graph)
    updating = {op["name"] for op in graph.ops if name in op.get("updates", ())}
    if steps[touching[-1]].get("offload") == name and any(steps[k].get("run") in updating for k in touching):
        del kept[touching[-1]]
    return [{"offload": name}, *kept], "device"


def _touching(steps: Sequence[Step], name: str, graph: Graph) -> list[int]:
    """The places of the steps that move or read a tensor."""
    reading = {op["name"] for op in graph.ops if name in op["reads"]}
    return [k for k, step in enumerate(steps) if name in step.values() or step.get("run") in reading]
