"""The plan of a training step in words."""

from __future__ import annotations

from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.support.units import format_bytes, format_percent, format_seconds
from memsched.torch.report import above, describe_link

_SHOWN = 6  # names in a list


def describe_step(result: Result, times: str) -> str:
    """The report of a plan.

    Parameters
    ----------
    result : Result
        Of a graph or a family of graphs.
    times : str
        Where the times come from.
    """
    graph, timeline = result.graph, result.timeline
    rounds = result.schedule.rounds
    seconds = {op["name"]: float(op["choices"][0]["time"]) for op in graph.ops}
    once = sum(count for _, count in rounds) * sum(seconds.values())
    sizes = {tensor["name"]: int(tensor["size"]) for tensor in graph.tensors}
    split = ", ".join(f"{count} of {batch} samples" for batch, count in rounds)
    lines = [
        f"{graph.name}: {len(graph.ops)} operations, planned by {result.planner}",
        *([f"in rounds: {split}"] if sum(count for _, count in rounds) > 1 else []),
        "",
        "memory",
        f"  budget        {format_bytes(result.schedule.budget)}",
        f"  without plan  {format_bytes(peak_memory(result.problem))}",
        f"  with plan     {format_bytes(timeline.peak_memory)}, of which {format_bytes(graph.resident)} are resident",
        *_arena(result),
        "",
        f"time of a step ({times})",
        f"  without plan  {format_seconds(once)}",
        f"  with plan     {format_seconds(timeline.makespan)}, {above(max(timeline.makespan, once), once)} more",
        f"  no plan can   {format_seconds(result.lower_bound)} is a lower bound on {result.bounded}; "
        + ("this plan is optimal" if result.optimal else f"this plan is within {format_percent(result.gap)}"),
        "",
        "what travels",
        f"  to the host   {format_bytes(timeline.bytes_out)} in {len(result.offloaded)} tensors"
        + _names([f"{name} ({format_bytes(sizes[name])})" for name in result.offloaded]),
        f"  and back      {format_bytes(timeline.bytes_in)}",
        f"  link          {describe_link(result)}",
        "",
        "what is repeated",
        f"  {_repeated(result)}",
    ]
    return "\n".join(lines)


def _arena(result: Result) -> list[str]:
    if result.placement is None:
        return []
    height, gaps = result.placement.height, result.placement.fragmentation
    return [f"  addresses     of one arena of {format_bytes(height)}, of which {format_percent(gaps)} are gaps"]


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}" if names else ""


def _repeated(result: Result) -> str:
    if not result.recomputed:
        return "nothing"
    count = len(result.recomputed)
    return f"{count} operations in {format_seconds(result.timeline.recompute_time)}{_names(list(result.recomputed))}"
