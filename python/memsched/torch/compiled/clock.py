"""The clock that times what runs on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

_READS = 1000  # of a clock in which it must tick: half a millisecond, where operations take down to ten microseconds


def now() -> float:
    """Seconds: of this thread where it computes alone, so that what others do to the machine does not count."""
    return time.thread_time() if torch.get_num_threads() == 1 and threads_are_timed() else time.perf_counter()


@cache
def threads_are_timed() -> bool:
    """Whether the clock of a thread serves for single operations: on some systems it ticks a hundred times a second."""
    return ticks(time.thread_time)


def ticks(clock: Callable[[], float]) -> bool:
    """Whether a clock goes on within the time of an operation, three times one after the other."""
    for _ in range(3):
        began = clock()
        if all(clock() == began for _ in range(_READS)):
            return False
    return True
