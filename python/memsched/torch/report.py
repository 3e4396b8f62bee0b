"""A plan in words."""

from __future__ import annotations

from collections.abc import Mapping

from memsched._core import Chain, Timeline
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.support.units import format_bandwidth, format_bytes, format_percent, format_seconds
from memsched.torch.resident import Resident

_PARTS = {
    "parameters": "parameters",
    "buffers": "buffers",
    "gradients": "gradients of parameters",
    "optimizer": "optimiser state",
    "inputs": "inputs",
    "outputs": "results and their gradients",
    "input_gradients": "gradients of inputs",
    "environment": "masks and other values beside the chain",
    "loss": "loss function",
    "repeated": "scratch of repeated runs",
    "shared_gradients": "gradients of tied weights on their way",
    "reserve": "reserve for workspaces and the allocator",
}


def describe_plan(result: Result, resident: Resident, times: str, measured: Timeline | None) -> str:
    """The report of a plan of a chain."""
    chain = result.problem
    assert isinstance(chain, Chain)
    return describe(
        result,
        title=f"{chain.name or 'model'}: {chain.n} stages, planned by {result.planner}",
        resident={_PARTS[name]: count for name, count in resident.parts().items()},
        runs_once=float(chain.forward_time.sum() + chain.backward_time.sum()),
        times=times,
        again=_recomputed(result, chain),
        peak=result.timeline.peak_memory,
        measured=measured,
    )


def describe(
    result: Result,
    *,
    title: str,
    resident: Mapping[str, int],
    runs_once: float,
    times: str,
    again: str,
    peak: int,
    measured: Timeline | None = None,
) -> str:
    """The report of a plan.

    Parameters
    ----------
    result : Result
    title : str
    resident : dict of str to int
        Bytes that do not move, by what they are.
    runs_once : float
        Seconds of a step without a plan.
    times : str
        Where the times come from.
    again : str
        What runs again.
    peak : int
        Bytes with the plan.
    measured : Timeline, optional
    """
    timeline = result.timeline
    lines = [
        title,
        *_rounds(result),
        "",
        "memory",
        f"  budget        {format_bytes(result.schedule.budget)}",
        f"  without plan  {format_bytes(peak_memory(result.problem))}",
        f"  with plan     {format_bytes(peak)}{_beside(measured, 'peak_memory')}",
        f"  resident      {format_bytes(sum(resident.values()))}, of which",
        *(f"    {format_bytes(count):>10}  {name}" for name, count in resident.items() if count),
        *_arena(result),
        "",
        f"time of a step ({times})",
        f"  without plan  {format_seconds(runs_once)}",
        f"  with plan     {format_seconds(timeline.makespan)}, {above(timeline.makespan, runs_once)} more"
        + _beside(measured, "makespan"),
        f"  no plan can   {format_seconds(result.lower_bound)} is a lower bound on {result.bounded}; "
        + ("this plan is optimal" if result.optimal else f"this plan is within {format_percent(result.gap)}"),
        "",
        "what moves",
        f"  to the host   {format_bytes(timeline.bytes_out)} in {len(result.offloaded)} tensors",
        f"  and back      {format_bytes(timeline.bytes_in)}",
        f"  link          {describe_link(result)}",
        "",
        "what is recomputed",
        f"  {again}",
    ]
    return "\n".join(lines)


def _rounds(result: Result) -> list[str]:
    rounds = result.schedule.rounds
    split = ", ".join(f"{count} of {batch} samples" for batch, count in rounds)
    return [f"in rounds: {split}"] if sum(count for _, count in rounds) > 1 else []


def _arena(result: Result) -> list[str]:
    if result.placement is None:
        return []
    height, gaps = result.placement.height, result.placement.fragmentation
    return [f"  addresses     of one arena of {format_bytes(height)}, of which {format_percent(gaps)} are gaps"]


def _beside(measured: Timeline | None, what: str) -> str:
    if measured is None:
        return ""
    value = getattr(measured, what)
    return f" (measured: {format_bytes(value) if what == 'peak_memory' else format_seconds(value)})"


def above(makespan: float, least: float) -> str:
    return format_percent(makespan / least - 1) if least > 0 else "none"


def describe_link(result: Result) -> str:
    device = result.device
    if device.d2h == device.h2d == 0:
        return "none"
    out, back = format_bandwidth(device.d2h), format_bandwidth(device.h2d)
    ways = out if out == back else f"{out} out, {back} back"
    return f"{ways}, {'both ways at once' if device.duplex else 'one way at a time'}"


def _recomputed(result: Result, chain: Chain) -> str:
    names = chain.names or [f"stage {k + 1}" for k in range(chain.n)]
    again = [names[int(op[1:]) - 1] for op in result.recomputed]
    if not again:
        return "nothing"
    shown = ", ".join(again[:6]) + (f" and {len(again) - 6} more" if len(again) > 6 else "")
    return f"{len(again)} stages in {format_seconds(result.timeline.recompute_time)}: {shown}"
