"""What PyTorch's own allocator says."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocator_peak(step: Callable[[], object]) -> int:
    """The most that a step had allocated on the CPU beyond what was there before, when nothing is recorded."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        result = step()
    events = [event for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
