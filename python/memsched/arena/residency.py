"""What a schedule holds on the device from step to step, as buffers to be placed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Graph, Schedule
from memsched.arena.buffers import Buffer, made
from memsched.arena.placement import Placement
from memsched.arena.search import Columns

Residency = tuple[npt.NDArray[Any], ...]  # the columns of Timeline.blocks


def placement_of(schedule: Schedule, graph: Graph) -> Placement | None:
    """The addresses that a schedule carries, or None; proven lowest if the height equals the load."""
    if schedule.memory != "contiguous":
        return None
    residency = _core.residency(graph, schedule)
    _, start, end, size, _, offset = residency
    return Placement(
        buffers=tuple(as_buffers(residency, graph, 1)),
        offsets=tuple(offset.tolist()),
        height=int((size + offset).max(initial=0)),
        lower_bound=_core.load(start.tolist(), end.tolist(), size.tolist()),
        method="schedule",
        runtime=0.0,
    )


def buffers_of(schedule: Schedule, graph: Graph, alignment: int = 1) -> list[Buffer]:
    """The buffers of a schedule; inputs and weights at the offsets that contiguous schedules expect."""
    return as_buffers(_core.residency(graph, schedule), graph, alignment)


def as_buffers(residency: Residency, graph: Graph | None, alignment: int) -> list[Buffer]:
    """The buffers as objects, with the names of the graph's tensors."""
    names: Iterable[str | None] = itertools.repeat(None)
    if graph is not None:
        named = [*_core.tensor_names(graph), None]
        names = map(named.__getitem__, residency[0].tolist())
    start, end, size, own, offset = as_columns(residency, alignment)
    fixed = [None if at < 0 else at for at in offset]
    return made(zip(start, end, size, own, fixed, names, strict=False))


def as_columns(residency: Residency, alignment: int) -> Columns:
    """Columns of `_core.residency` to be placed; inputs and weights at the offsets that contiguous schedules expect."""
    _, start, end, size, source, _ = residency
    tops = np.cumsum(np.where(source, size, 0))
    offset = np.where(source, tops - size, -1)
    columns = (start, end, size, np.where(source, 1, alignment), offset)
    return Columns(*(column.tolist() for column in columns))


def for_all_rounds(columns: Columns, schedule: Schedule) -> Columns:
    """Extend lifetimes so that addresses also hold in the rounds of smaller batches.

    There everything is smaller, but inputs are packed from 0, so each may begin lower, where an earlier one ends in the
    full batch, and never beyond its own end. So while a later input is held, all earlier ones count as held.
    """
    if len({batch for batch, _ in schedule.rounds}) < 2:
        return columns
    ends, last = list(columns.end), 0
    for k in reversed([k for k, offset in enumerate(columns.offset) if offset >= 0]):
        ends[k] = last = max(last, ends[k])
    return columns._replace(end=ends)
