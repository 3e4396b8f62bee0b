"""The plan of captured steps for a budget, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from memsched._core import Device
from memsched.errors import InfeasibleError
from memsched.problems.budget import parse_memory
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.study.compare import plan as plan_graph
from memsched.support.units import format_bytes, format_percent, format_seconds, parse_bandwidth, parse_bytes
from memsched.torch.compiled.as_graph import Held, Sizes, held_by_caller, step_graph
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.times import measured_seconds, modelled_seconds
from memsched.torch.link import measure_link
from memsched.torch.machines import Link, machine
from memsched.torch.report import above, describe_link
from memsched.torch.resident import optimizer_bytes
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
    "fused": "buffers of compiled code that are no tensors of the plan",
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
    compiled : int, optional
        The peak of compiled code, which may hold more than the tensors of the plan, or less.
    """

    result: Result
    held: Held
    times: str
    compiled: int | None = None

    @property
    def peak_memory(self) -> int:
        """Of the whole process, in bytes."""
        return self.result.peak_memory if self.compiled is None else self.compiled

    def process_bytes(self, counted: int) -> int:
        """The bytes of the whole process, of which a meter counted those that were allocated during the step."""
        held = self.held
        return counted + held.total - held.results - held.updates - held.random - held.fused

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
            f"  with plan     {format_bytes(self.peak_memory)}",
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


def plan_joint(
    joint: Joint, sizes: Sizes, static: Sequence[int], options: Options, *, gradients: int, others: int, fused: int = 0
) -> CompiledPlan:
    """Plan one captured graph.

    Parameters
    ----------
    joint, sizes, static
        As `held_by_caller` takes them.
    options : Options
    gradients : int
        Bytes of the gradients that its parameters have already.
    others : int
        Bytes on the device that are none of this graph's.
    fused : int
        As in `Held`.

    Raises
    ------
    InfeasibleError
        The budget is too small; `.min_memory` is one that is enough.
    """
    held = replace(
        held_by_caller(joint, sizes, static),
        gradients=gradients,
        others=others,
        optimizer=optimizer_bytes(options.optimizer, joint.device),
        reserve=parse_bytes(options.reserve, "reserve"),
        fused=fused,
    )
    if options.device == "here":
        seconds = measured_seconds(joint, sizes)
        source = f"measured on {_device_name(joint.device)}"
        link = measure_link(joint.device) if options.bandwidth is None and joint.device.type == "cuda" else None
    else:
        chip, link = machine(options.device)
        seconds = modelled_seconds(joint, sizes, chip)
        source = describe(chip)
    graph = step_graph(joint, sizes, seconds, resident=held.total)
    device = _device(parse_memory(options.budget, graph, "the budget"), link, options)
    try:
        result = plan_graph(graph, device=device, planner=options.planner, time_limit=options.time_limit)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"the budget of {format_bytes(device.memory)} is too small for the step: {format_bytes(held.total)} are "
            f"held by the caller, and {error}",
            error.min_memory,
        ) from None
    validate(result)
    return CompiledPlan(result, held, source)


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
