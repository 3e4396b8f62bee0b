"""The arena of `memsched.torch` for plans with addresses of their own, one at a time, NaN where nothing lies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from memsched.torch.arena.native import PASS, Counts, Requests, cpu

__all__ = ["PASS", "Counts", "Requests", "clock_seconds", "expect", "is_sound", "make", "watched"]

_MADE = [0, 0]  # address and bytes


@contextlib.contextmanager
def watched(*, checked: bool = False, timed: bool = False, recorded: bool = False) -> Iterator[None]:
    """Meanwhile the requests of this thread are counted, and served as `expect` says; see `CpuNative.begin`."""
    cpu().take_events()
    cpu().begin(checked=checked, timed=timed, recorded=recorded)
    try:
        yield
    finally:
        cpu().end()


def make(nbytes: int) -> int:
    """An arena of exactly so many bytes in the place of the one before; its address, a multiple of 4096."""
    if _MADE[0]:
        cpu().free(_MADE[0])
    _MADE[:] = cpu().make(nbytes, checked=True), nbytes
    return _MADE[0]


def expect(requests: Requests | None) -> None:
    """What this thread will ask for from now on, in this order."""
    cpu().expect(_MADE[0], requests)


def is_sound() -> bool:
    """Whether nobody wrote to the bytes right before and right behind the arena."""
    return cpu().is_sound(*_MADE)


def clock_seconds(times: int = 100_000) -> float:
    """How long measuring nothing takes, which each timed request and each timed giving back contains."""
    return float(cpu().library.arena_clock_ns(times)) * 1e-9
