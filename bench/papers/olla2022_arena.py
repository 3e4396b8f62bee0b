"""What PyTorch's allocator costs: real steps on the CPU, with it and with addresses that were planned (Figure 14)."""

from __future__ import annotations

from typing import Any

from bench.common import Row
from bench.papers.olla2022_graphs import NETWORKS, built

import memsched as ms

__all__ = ["allocating"]


def _step(network: str, batch: int) -> Any:
    """A step in an arena."""
    import torch
    from bench.native.arena_step import ArenaStep

    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = tuple(torch.randn(shape) for shape in NETWORKS[network].args(batch))
    return ArenaStep(built(network), args, lambda out: out.sum())


def _placed(graph: ms.Graph, alignment: int, limit: float) -> ms.Schedule:
    """Our order with planned addresses, whose budget is what they need."""
    found = ms.olla(graph, 2**50, alignment=alignment, time_limit=limit)
    assert found.placement is not None
    return ms.Schedule.from_json({**found.schedule.to_json(), "budget": graph.resident + found.placement.height})


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

    step = _step(network, batch)
    found = allocator_times(step, _placed(step.graph, ALIGNMENT, limit), repeat=repeat)
    row: Row = {"network": network, "batch": batch, "calls": found.calls, "planned": found.planned}
    row |= {"step": found.default_step, "step in an arena": found.arena_step, "bytes": found.arena_bytes}
    return {**row, "allocator": found.default_allocator, "arena": found.arena_allocator}
