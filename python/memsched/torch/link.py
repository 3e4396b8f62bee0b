"""The bandwidth between a device and the host, measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from memsched.torch.lanes import Direction, Lanes, lanes_on
from memsched.torch.machines import Link

_BYTES = 64 << 20
_REPEATS = 5


def measure_link(device: torch.device) -> Link:
    """The link of a device. On the CPU a copy within memory stands for it.

    The slower direction counts. The link is duplex if both directions at once take less than the sum of each alone, by
    a quarter at least.
    """
    lanes = lanes_on(device)
    size = _BYTES if device.type == "cuda" else _BYTES // 4
    out = min(_seconds(lanes, size, ("out",)) for _ in range(_REPEATS))
    back = min(_seconds(lanes, size, ("in",)) for _ in range(_REPEATS))
    both = min(_seconds(lanes, size, ("out", "in")) for _ in range(_REPEATS))
    return Link(
        name=f"measured on {device}",
        bandwidth=size / max(out, back),
        duplex=device.type == "cuda" and both < 0.75 * (out + back),
        source=f"copies of {size} bytes, the best of {_REPEATS}",
    )


def _seconds(lanes: Lanes, size: int, ways: tuple[Direction, ...]) -> float:
    """The time that one copy each way takes, all issued together."""
    pairs = [(lanes.allocate(size), lanes.host_memory(size)) for _ in ways]
    lanes.finish()
    start = time.perf_counter()
    for way, (storage, host) in zip(ways, pairs, strict=True):
        lanes.copy(way, storage, host, [])
    lanes.finish()
    return time.perf_counter() - start


_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # versions 2 and 1


def default_host_memory() -> int:
    """Half of the memory of this machine, or of the container that this process is in, bytes."""
    machine = int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    texts = [path.read_text(encoding="ascii").strip() for path in map(Path, _CGROUP_LIMITS) if path.is_file()]
    return min([machine, *(int(text) for text in texts if text.isdigit())]) // 2
