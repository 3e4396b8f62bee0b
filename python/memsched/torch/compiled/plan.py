"""The plan of captured steps for a budget, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memsched._core import Device, Graph
from memsched.errors import InfeasibleError
from memsched.planners.registry import PLANNERS, min_memory
from memsched.problems.budget import parse_memory
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.study.compare import plan as plan_graph
from memsched.support.units import format_bytes, format_percent, format_seconds, parse_bandwidth, parse_bytes
from memsched.torch.compiled.as_graph import LEAVE, Held, Sizes, Visit, step_graph
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.times import measured_seconds, modelled_seconds
from memsched.torch.link import measure_link
from memsched.torch.machines import Link, machine
from memsched.torch.report import above, describe_link
from memsched.torch.roofline import describe
from memsched.torch.solve import default_host_memory
from memsched.validation.plan import validate

_HELD = {
    "parameters": "parameters and buffers",
    "inputs": "inputs",
    "results": "results, until the step ends",
    "updates": "old values of buffers that the step changes",
    "gradients": "gradients from before the step",
    "optimizer": "optimiser state",
    "random": "states of random number generators",
    "others": "whatever else was on the device",
    "reserve": "reserve",
}


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """How a training step that torch.compile captured fits a budget.

    Attributes
    ----------
    result : Result
        The plan of the step's graph, simulated. Budget, peak and resident bytes are those of the whole process.
    held : Held
        What is resident, split by what it is for.
    times : str
        Where the times come from: measured, or a model.
    """

    result: Result
    held: Held
    times: str

    def process_bytes(self, counted: int) -> int:
        """The bytes of the whole process, of which a meter counted those that were allocated during the step."""
        held = self.held
        return counted + held.total - held.results - held.updates - held.random

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        result, timeline = self.result, self.result.timeline
        ideal = sum(op["choices"][0]["time"] for op in result.problem.ops)  # type: ignore[union-attr]
        again = list(result.recomputed)
        lines = [
            f"{result.problem.name}: {len(result.problem.ops)} operations, planned by {result.planner}",  # type: ignore[union-attr]
            "",
            "memory",
            f"  budget        {format_bytes(result.schedule.budget)}",
            f"  without plan  {format_bytes(peak_memory(result.problem))}",
            f"  with plan     {format_bytes(timeline.peak_memory)}",
            f"  resident      {format_bytes(self.held.total)}, of which",
            *(f"    {format_bytes(count):>10}  {_HELD[name]}" for name, count in self.held.parts().items() if count),
            "",
            f"time of a step ({self.times})",
            f"  without plan  {format_seconds(ideal)}",
            f"  with plan     {format_seconds(timeline.makespan)}, {above(timeline.makespan, ideal)} more",
            f"  no plan can   {format_seconds(result.lower_bound)} is a lower bound on {result.bounded}; "
            + ("this plan is optimal" if result.optimal else f"this plan is within {format_percent(result.gap)}"),
            "",
            "what moves",
            f"  to the host   {format_bytes(timeline.bytes_out)} in {len(result.offloaded)} tensors",
            f"  and back      {format_bytes(timeline.bytes_in)}",
            f"  link          {describe_link(result)}",
            "",
            "what is recomputed",
            f"  {len(again)} operations in {format_seconds(timeline.recompute_time)}" if again else "  nothing",
        ]
        return "\n".join(lines)


def plan_step(
    visits: Sequence[Visit], returns: Sequence[int], held: Held, options: Options, *, source: str, link: Link | None
) -> CompiledPlan:
    """Plan the step that visits make.

    Parameters
    ----------
    visits, returns
        As `step_graph` takes them.
    held : Held
    options : Options
    source : str
        Where the visits' times come from.
    link : Link, optional
        To the host, where there is one.

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is one that is enough.
    """
    graph = step_graph(visits, returns, resident=held.total)
    device = _device(parse_memory(options.budget, graph, "the budget"), link, options)
    try:
        result = _planned(graph, device, options, reorder=len(visits) == 1)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"the budget of {format_bytes(device.memory)} is too small for the step: {format_bytes(held.total)} are "
            f"held by the caller, and {error}",
            error.min_memory,
        ) from None
    validate(result)
    return CompiledPlan(result, held, source)


def plan_carefully(visit: Visit, held: Held, options: Options, *, source: str, link: Link | None) -> CompiledPlan:
    """Plan a visit for about the least memory for which there is a plan."""
    graph = step_graph([visit], [0], resident=held.total)
    least, enough = min_memory(graph), peak_memory(graph)
    result = _planned(graph, _device(enough, link, options), options, moves=0)
    for _ in range(_HALVINGS):
        middle = (least + enough) // 2
        try:
            result = _planned(graph, _device(middle, link, options), options, moves=0)
            enough = middle
        except InfeasibleError:
            least = middle
    return CompiledPlan(result, held, source)


_HALVINGS = 6


def _planned(graph: Graph, device: Device, options: Options, **rest: Any) -> Result:
    """By the planner asked for. The order in which several graphs run is not its to change."""
    if options.planner == "selective":
        return PLANNERS["selective"].plan(graph, device=device, time_limit=options.time_limit, **rest)
    return plan_graph(graph, device=device, planner=options.planner, time_limit=options.time_limit)


def bytes_left(result: Result) -> int:
    """Bytes that a plan of one visit has on the device when its forward returns, besides what the caller holds."""
    graph = result.problem
    assert isinstance(graph, Graph)
    size = {one["name"]: one["size"] for one in graph.tensors}
    writes = {op["name"]: op["writes"] for op in graph.ops}
    here: set[str] = set()
    for step in result.schedule.steps:
        if step.get("run") == LEAVE:
            break
        here |= {*writes.get(step.get("run"), ()), *([step["prefetch"]] if "prefetch" in step else [])}
        here.discard(step.get("free"))
    return sum(size[name] for name in here)


def times_of(joint: Joint, sizes: Sizes, options: Options) -> tuple[list[float], str, Link | None]:
    """The seconds of each operation, where they come from, and the link to the host."""
    if options.device == "here":
        link = measure_link(joint.device) if options.bandwidth is None and joint.device.type == "cuda" else None
        return measured_seconds(joint, sizes), f"measured on {_device_name(joint.device)}", link
    chip, link = machine(options.device)
    return modelled_seconds(joint, sizes, chip), describe(chip), link


def _device(memory: int, link: Link | None, options: Options) -> Device:
    bandwidth = link.bandwidth if link is not None else 0.0
    if options.bandwidth is not None:
        bandwidth = parse_bandwidth(options.bandwidth, "bandwidth")
    hosts = (
        parse_bytes(options.host_memory, "host_memory") if options.host_memory is not None else default_host_memory()
    )
    return Device(
        memory,
        bandwidth=bandwidth,
        duplex=link.duplex if link is not None else True,
        host_memory=hosts if bandwidth > 0 else None,
        name=link.name if link is not None else "",
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
