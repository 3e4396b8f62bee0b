"""What PyTorch's allocator costs: real training steps on the CPU, with it and with planned addresses (Figure 14)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from bench.common import Row
from bench.papers.olla2022_graphs import NETWORKS, built, optimizer_of

__all__ = ["allocating"]

_MOST = 8  # steps until two have been alike


def _step(network: str, batch: int, optimizer: str) -> Callable[[], None]:
    """A training step that leaves nothing behind but what it changes: forward, backward, update."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, known = built(network), NETWORKS[network]
    if known.tokens:
        args = tuple(torch.randint(1000, shape) for shape in known.args(batch))
    else:
        args = tuple(torch.randn(shape) for shape in known.args(batch))
    updates = optimizer_of(optimizer)(list(model.parameters()))

    def step() -> None:
        found: Any = model(*args)
        found = getattr(found, "logits", found)
        sum(one.sum() for one in (found if isinstance(found, tuple) else [found])).backward()
        updates.step()
        updates.zero_grad(set_to_none=True)

    return step


def allocating(network: str, batch: int, optimizer: str, repeat: int, limit: float) -> Row:
    """Seconds that a training step spends allocating and giving back, both ways, without the clock's own; medians.

    Parameters
    ----------
    network : str
        Whose weights fit in real memory.
    batch, repeat : int
        Samples, and timed steps of each kind, after one that is not timed.
    optimizer : str
        "sgd" or "adam".
    limit : float
        Seconds for the addresses.
    """
    from bench.native import arena as watching

    from memsched.torch import Arena
    from memsched.torch.arena.native import cpu

    step, served = _step(network, batch, optimizer), Arena(time_limit=limit)
    for _ in range(_MOST):
        with served:
            step()
        if served.placement is not None:
            break
    assert served.placement is not None, served
    begin, clock = served._begin, watching.clock_seconds()

    def once(in_arena: bool, timed: bool) -> float:
        served._begin = partial(begin, timed=timed)
        with served if in_arena else watching.watched(timed=timed):
            start = time.perf_counter()
            step()
            seconds = time.perf_counter() - start
        found = cpu().counts()
        return found.allocating + found.giving_back - (found.calls + found.given_back) * clock if timed else seconds

    found: dict[tuple[bool, bool], list[float]] = {}
    with warnings.catch_warnings(action="error"):  # of a step that is another one
        for turn in range(repeat + 1):
            for kind in ((False, False), (True, False), (False, True), (True, True)):
                value = once(*kind)
                if turn:
                    found.setdefault(kind, []).append(value)
    assert served.counts is not None
    row: Row = {"network": network, "batch": batch, "optimizer": optimizer}
    row |= {"calls": served.counts.calls, "planned": served.counts.planned[0], "bytes": served.placement.height}
    row |= {"step": median(found[False, False]), "step in an arena": median(found[True, False])}
    return {**row, "allocator": max(0.0, median(found[False, True])), "arena": max(0.0, median(found[True, True]))}
