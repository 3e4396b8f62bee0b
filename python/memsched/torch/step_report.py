"""What a plan of a whole step tells of its updates and of micro-batches, as text."""

from __future__ import annotations

from collections.abc import Iterator

from memsched.result import Result
from memsched.support.formats import counted, format_bytes, format_seconds, unit_written
from memsched.torch.compiled.update_mark import is_waiting_gradient
from memsched.torch.compiled.updates import Updates


def told_of_updates(updates: Updates, learning: int) -> Iterator[str]:
    """Of a step by whose backward so many parameters learn."""
    kind, hosted, most = type(updates.optimizer).__name__, len(updates.hosted), updates.how.max_norm
    clipped = "" if most is None else f"; gradients are clipped to a norm of {most:g} of all"
    scaled = "; the loss is scaled, and updates are left out if some are infinite" if updates.scaling else ""
    yield f"\nwhat is updated\n  {len(updates.places)} of {learning} parameters, by {kind}{clipped}{scaled}"
    if hosted:
        yield f"  {hosted} of these on the host, {updates.host_times}"
    if updates.failed_on_host:
        yield f"  some stay on the device, as they failed on the host: {updates.failed_on_host}"


def told_of_waiting(step: Result, waiting: Result, added: int) -> Iterator[str]:
    """Of micro-batches before a step, of whose gradients so many are added on the host."""
    unit, link = unit_written(step.device), step.device
    took = f"{format_seconds(waiting.timeline.makespan)}, {format_bytes(waiting.peak_memory, unit)}"
    yield f"\nmicro-batches whose gradients wait for a step\n  each takes {took}"
    if added:
        yield f"  {counted(added, 'gradient')} added on the host"
    out, back = moved_between(step, waiting)
    if out or back:
        moved = f"{format_bytes(out, unit)} to the host and {format_bytes(back, unit)} back"
        yield f"  and between them and the step {moved}: {format_seconds(out / link.d2h + back / link.h2d)}"


def moved_between(step: Result, waiting: Result) -> tuple[int, int]:
    """Bytes that go to the host, and that come back, as a step follows a micro-batch and is followed by one."""
    out = back = 0
    for one in waiting.graph.tensors:
        first, then = (it.schedule.border.get(one["name"]) == "host" for it in (waiting, step))
        if one["role"] == "persistent" and first is not then:
            gone = is_waiting_gradient(one["name"])  # once the step has used it
            out += one["size"] if then or not gone else 0
            back += one["size"] if first or not gone else 0
    return out, back
