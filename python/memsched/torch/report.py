"""A plan in words."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from memsched.errors import visible
from memsched.problems.modules import in_modules
from memsched.problems.problem import peak_memory
from memsched.result import Result
from memsched.support.formats import (
    counted,
    format_bandwidth,
    format_bytes,
    format_percent,
    format_seconds,
    unit_written,
)
from memsched.torch.compiled.parameters import is_parameter
from memsched.torch.compiled.update_mark import is_waiting_gradient

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from memsched.torch.compiled.compiled_plan import CompiledPlan

_LISTED = 5  # modules
NO_OPTIMIZER = "no optimizer was given, and none is counted"


class _HasResult(Protocol):
    @property
    def result(self) -> Result: ...
    @property
    def shown(self) -> Result: ...


class ShowsResult:
    """A plan that is shown as its `result` is: a table where it is printed, in notebooks with its picture."""

    __slots__ = ()

    @property
    def shown(self: _HasResult) -> Result:
        """The result with ops and tensors called "module/op", where modules are known."""
        captured: Any = getattr(self, "plan", self)
        named: Mapping[str, str] = captured.modules
        return Result.from_json(in_modules(self.result.to_json(), named)) if named else self.result

    def __str__(self: _HasResult) -> str:
        return str(self.result)

    def _repr_html_(self: _HasResult) -> str:
        return self.shown._repr_html_()

    def plot(self: _HasResult, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the plan, as `memsched.plot` does, and save the picture if a path is given."""
        return self.shown.plot(path)

    def to_pandas(self: _HasResult) -> pandas.DataFrame:
        """A row for each step, as `Result.to_pandas` gives it."""
        return self.result.to_pandas()


_FAR = 0.05  # of a plan above its bound
_ROUNDED = 1e-9  # of two sums of the same times in another order
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


def describe(plan: CompiledPlan) -> str:
    """The report of a plan."""
    result, timeline, operations = plan.result, plan.result.timeline, plan.result.graph.ops
    unit = unit_written(result.device)
    rounds = sum(count for _, count in result.schedule.rounds)
    runs_once = sum(op["choices"][0]["time"] for op in operations) * rounds  # seconds
    again = f"{counted(len(result.recomputed), 'operation')} in {format_seconds(timeline.recompute_time)}"
    writers = {name: op["name"] for op in operations for name in op["writes"]}
    sizes = {tensor["name"]: tensor["size"] for tensor in result.graph.tensors}
    lines = [
        f"{plan.title}: {counted(len(operations), 'operation')}, planned by {result.planner} for "
        + format_bytes(result.schedule.budget, unit),
        *_rounds(result),
        "",
        "memory",
        f"  budget           {format_bytes(result.schedule.budget, unit)}",
        f"  everything kept  {format_bytes(peak_memory(result.problem), unit)}",
        f"  with plan        {format_bytes(plan.peak_memory, unit)}",
        *(["                   all is kept: the budget is enough for that"] if not _saves(result) else []),
        f"  resident         {format_bytes(plan.resident.total, unit)}, of which",
        *(f"    {format_bytes(held, unit):>10}  {_HELD[name]}" for name, held in plan.resident.parts().items() if held),
        *_lasting(result, unit),
        *_arena(result, unit),
        "",
        f"time of a step ({plan.times})",
        f"  everything kept  {format_seconds(runs_once)}",
        f"  with plan        {format_seconds(timeline.makespan)}, {_beside(timeline.makespan, runs_once)}",
        f"  lower bound      {format_seconds(result.lower_bound)}, on {result.bounded}: this plan is "
        + ("optimal" if result.optimal else f"within {format_percent(result.gap)} of it"),
        *_faster(result),
        "",
        "what moves",
        f"  to the host      {format_bytes(timeline.bytes_out, unit)} in {counted(len(result.offloaded), 'tensor')}",
        *_most_in(plan, {writers[name]: sizes[name] for name in result.offloaded if name in writers}),
        f"  and back         {format_bytes(timeline.bytes_in, unit)}",
        f"  link             {_describe_link(result)}",
        "",
        "what is recomputed",
        f"  {again if result.recomputed else 'nothing'}",
        *_most_in(plan, {op["name"]: op["choices"][0]["time"] for op in operations if op["name"] in result.recomputed}),
        *_checkpointed(plan.checkpointed),
    ]
    return "\n".join(lines)


def _saves(result: Result) -> bool:
    """Whether a plan does anything for its budget."""
    return bool(result.recomputed or result.timeline.bytes_out or result.peak_memory < peak_memory(result.problem))


def _faster(result: Result) -> list[str]:
    """What may bring a plan closer to its bound."""
    searched = result.planner != "selective" or bool(result.params.get("time_limit"))
    return [] if searched or result.gap <= _FAR else ["                   time_limit=10 may find a faster one"]


def _most_in(plan: CompiledPlan, amounts: Mapping[str, float]) -> list[str]:
    """The modules with the largest amounts, by operation."""
    sums: dict[str, float] = defaultdict(float)
    for operation, amount in amounts.items():
        if operation in plan.modules:
            sums[plan.modules[operation]] += amount
    listed = [visible(name) for name in sorted(sums, key=lambda name: -sums[name])[:_LISTED]]
    more = f" and {counted(len(sums) - len(listed), 'other module')}" if len(sums) > len(listed) else ""
    return [f"  {'most of it in' if more else 'in':15}  {', '.join(listed)}{more}"] if listed else []


def _rounds(result: Result) -> list[str]:
    rounds = result.schedule.rounds
    split = ", ".join(f"{count} of {batch} samples" for batch, count in rounds)
    return [f"in rounds: {split}"] if sum(count for _, count in rounds) > 1 else []


def _checkpointed(operations: int) -> list[str]:
    if not operations:
        return []
    again = counted(operations, "operation")
    return [f"  without the model's own checkpoints, which make plain PyTorch run {again} again"]


def _lasting(result: Result, unit: str) -> list[str]:
    """What may travel and lasts from step to step, where updates are a part of the step."""
    persistent = {one["name"]: one["size"] for one in result.graph.tensors if one["role"] == "persistent"}
    lines, kinds = [], {"states": " of the optimiser", "parameters": " that may travel", "gradients": " that may wait"}
    for what, told in kinds.items():
        sizes = {name: size for name, size in persistent.items() if size and _lasts_as(name) == what}
        there = sum(size for name, size in sizes.items() if result.schedule.border.get(name) == "host")
        told = f"{format_bytes(sum(sizes.values()), unit)}{told}, {format_bytes(there, unit)} of them"
        lines += [f"  {what:<16} {told} on the host between steps"] if sizes else []
    return lines


def _lasts_as(name: str) -> str:
    """Which kind of lasting tensor has a name."""
    if is_parameter(name):
        return "parameters"
    return "gradients" if is_waiting_gradient(name) else "states"


def _arena(result: Result, unit: str) -> list[str]:
    if result.placement is None:
        return []
    height, gaps = result.placement.height, result.placement.fragmentation
    told = f"of one arena of {format_bytes(height, unit)}, of which {format_percent(gaps)} are gaps"
    return [f"  addresses        {told}"]


def _beside(makespan: float, kept: float) -> str:
    """How much longer a plan takes than all runs on the device; it takes less where the host updates."""
    more = makespan / kept - 1 if kept > 0 else 0.0
    return f"{format_percent(abs(more))} {'less' if more < -_ROUNDED else 'more'}"


def _describe_link(result: Result) -> str:
    device = result.device
    if device.d2h == device.h2d == 0:
        return "none"
    out, back = format_bandwidth(device.d2h), format_bandwidth(device.h2d)
    ways = out if out == back else f"{out} out, {back} back"
    return f"{ways}, {'both ways at once' if device.duplex else 'one way at a time'}"
