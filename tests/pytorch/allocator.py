"""What PyTorch's own allocator says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def allocator_peak(step: Callable[[], object]) -> int:
    """The most that a step had allocated on the CPU beyond what was there before, when nothing is recorded.

    The log also has blocks that are given back and were taken before it began; they do not count.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as log:
        result = step()
    events = [event for event in _tree(log.profiler.kineto_results.experimental_event_tree()) if _counts(event)]
    del result
    held: dict[int, int] = {}
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_time_ns):
        size, address = event.typed[1].alloc_size, event.typed[1].ptr
        if size >= 0:
            held[address] = size
        else:
            size = -held.pop(address, 0)
        live += size
        peak = max(peak, live)
    return peak


def _tree(events: list[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _tree(event.children)


def _counts(event: Any) -> bool:
    return bool(event.tag == torch._C._profiler._EventType.Allocation)
