"""What a schedule holds from step to step, as buffers to be placed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Graph, Schedule
from memsched.arena.buffers import Buffer, made
from memsched.arena.placement import Columns, Placement

Blocks = tuple[npt.NDArray[Any], ...]  # columns, as Timeline.blocks has them


def placement_of(schedule: Schedule, graph: Graph) -> Placement | None:
    """The addresses that a schedule carries, if it does; proven lowest where they are as low as the load."""
    if schedule.memory != "contiguous":
        return None
    blocks = _core.residency(graph, schedule)
    _, start, end, size, _, offset = blocks
    return Placement(
        buffers=tuple(as_buffers(blocks, graph, 1)),
        offsets=tuple(offset.tolist()),
        height=int((size + offset).max(initial=0)),
        lower_bound=_core.load(start.tolist(), end.tolist(), size.tolist()),
        method="schedule",
        runtime=0.0,
    )


def buffers_of(schedule: Schedule, graph: Graph, alignment: int = 1) -> list[Buffer]:
    """What a schedule holds from step to step; inputs and weights at the offsets that contiguous schedules have."""
    return as_buffers(_core.residency(graph, schedule), graph, alignment)


def as_buffers(blocks: Blocks, graph: Graph | None, alignment: int) -> list[Buffer]:
    """The same as objects, with the names of the graph's tensors."""
    names: Iterable[str | None] = itertools.repeat(None)
    if graph is not None:
        named = [*_core.tensor_names(graph), None]
        names = map(named.__getitem__, blocks[0].tolist())
    start, end, size, own, offset = as_columns(blocks, alignment)
    fixed = [None if at < 0 else at for at in offset]
    return made(zip(start, end, size, own, fixed, names, strict=False))


def as_columns(blocks: Blocks, alignment: int) -> Columns:
    """Blocks of `_core.residency`, to be placed: inputs and weights at the offsets that contiguous schedules have."""
    _, start, end, size, source, _ = blocks
    tops = np.cumsum(np.where(source, size, 0))
    offset = np.where(source, tops - size, -1)
    columns = (start, end, size, np.where(source, 1, alignment), offset)
    return Columns(*(column.tolist() for column in columns))


def for_all_rounds(columns: Columns, schedule: Schedule) -> Columns:
    """Such that addresses hold in the rounds of smaller batches, too.

    There all is smaller, but inputs are packed from 0, so each may begin lower, where an earlier one ends in the full
    batch, and never beyond its own end. So while a later one is held, all before it count as held.
    """
    if len({batch for batch, _ in schedule.rounds}) < 2:
        return columns
    ends, last = list(columns.end), 0
    for k in reversed([k for k, offset in enumerate(columns.offset) if offset >= 0]):
        ends[k] = last = max(last, ends[k])
    return columns._replace(end=ends)
