"""What PyTorch's allocator costs: real steps on the CPU, with it and with addresses that were planned (Figure 14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.common import Row
from bench.papers.olla2022_graphs import NETWORKS, built
from bench.papers.olla2022_orders import Flow

import memsched as ms

__all__ = ["allocating"]


def _step(network: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A step in an arena, and its inputs."""
    import torch
    from bench.native.arena_step import ArenaStep

    from memsched.torch.graph_step.captured import CapturedStep

    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = tuple(torch.randn(shape) for shape in NETWORKS[network].args(batch))
    captured = CapturedStep(built(network), args, lambda out: out.sum())
    return ArenaStep(captured, args), args


def _placed(graph: ms.Graph, inputs: Sequence[tuple[int, int]], alignment: int, limit: float) -> ms.Schedule:
    """Our order with planned addresses; inputs have bytes and address already, in the order of the graph's list."""
    flow = Flow(graph)
    names = [tensor["name"] for tensor in graph.tensors]
    order = flow.numbers(ms.order(graph, time_limit=limit).order)
    given = iter(inputs)
    pins = {tensor: next(given)[1] for tensor, writer in enumerate(flow.writer) if writer < 0 and flow.bytes[tensor]}
    position = {op: index for index, op in enumerate(order)}
    keys: list[tuple[int, str]] = []  # the op that takes the memory, and its name for it
    buffers = []
    last: dict[int, list[int]] = {}
    for tensor, count in enumerate(flow.bytes):
        start = position.get(flow.writer[tensor], 0)
        final = max((position[op] for op in flow.readers[tensor]), default=start)
        last.setdefault(final, []).append(tensor)
        if count:
            keys.append((flow.writer[tensor], names[tensor]))
            pin = pins.get(tensor)
            buffers.append(
                ms.Buffer(start, final + 1, count, alignment=1 if pin is not None else alignment, offset=pin)
            )
    for op, count in enumerate(flow.workspace):
        if count:
            keys.append((op, ""))
            buffers.append(ms.Buffer(position[op], position[op] + 1, count, alignment=alignment))
    placed = ms.place(buffers, time_limit=limit)
    at: dict[int, dict[str, int]] = {op: {} for op in order}
    for (op, name), offset in zip(keys, placed.offsets, strict=True):
        if op >= 0:
            at[op][name] = int(offset)
    steps: list[dict[str, Any]] = []
    for index, op in enumerate(order):
        steps.append({"run": flow.names[op], "at": at[op]})
        steps += [{"free": names[tensor]} for tensor in last.get(index, ())]
    return ms.Schedule.from_json(
        {
            "format": "memsched-plan/1",
            "graph": graph.name,
            "chunk": None,
            "rounds": [[graph.batch, 1]],
            "budget": int(graph.resident) + int(placed.height),
            "memory": "contiguous",
            "planner": {"name": "order and place"},
            "steps": steps,
        }
    )


def allocating(network: str, batch: int, repeat: int, limit: float) -> Row:
    """Seconds that a step spends allocating and giving back, both ways.

    Parameters
    ----------
    network : str
        Whose weights fit in real memory.
    batch, repeat : int
        Samples, and timed steps of each kind.
    limit : float
        Seconds for order and addresses.
    """
    from bench.native.arena_step import ALIGNMENT, allocator_times

    step, args = _step(network, batch)
    schedule = _placed(step.graph, step.inputs(), ALIGNMENT, limit)
    found = allocator_times(step, schedule, args, repeat=repeat)
    row: Row = {"network": network, "batch": batch, "calls": found.calls, "planned": found.planned}
    row |= {"step": found.default_step, "step in an arena": found.arena_step, "bytes": found.arena_bytes}
    return {**row, "allocator": found.default_allocator, "arena": found.arena_allocator}
