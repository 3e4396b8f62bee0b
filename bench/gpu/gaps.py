"""What PyTorch's allocator loses to gaps between the tensors of a plan, by its rules; no GPU is needed.

python -m bench.gpu.gaps gpt2:bf16 --device h100

The rules are those of the caching allocator of CUDA with expandable segments: the smallest free block that is large
enough, or more pages; where none may be mapped any more, all free pages go back, and it asks again. That is a retry:
the host waits for the device, and pages are mapped once more.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from bench.common import table

SMALL = 1 << 20  # bytes of an allocation that lies in the pool of the small ones
PAGES = {True: 2 << 20, False: 20 << 20}
ROUND = 512
ADDRESSES = 1 << 50  # bytes; of a pool
STEPS = 4

Event = tuple[Literal["take", "give"], str, int]
"""Bytes that a tensor takes or gives back, by name."""


class FullError(Exception):
    """More is live than may be mapped."""


@dataclass(eq=False)
class Block:
    """Bytes of one pool's addresses. What is not mapped is no memory."""

    start: int
    size: int
    state: Literal["used", "free", "unmapped"]

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.start + self.size


class Allocator:
    """The two pools of a device, and how many bytes of memory they may have."""

    def __init__(self, cap: float = float("inf")) -> None:
        self.cap = cap
        self.mapped = 0  # bytes
        self.most = 0  # that were mapped
        self.ever = 0  # that were mapped, each time counted
        self.retries = 0
        self.pools = {small: [Block(0, ADDRESSES, "unmapped")] for small in PAGES}

    def take(self, nbytes: int) -> tuple[bool, Block]:
        """A block of so many bytes, and whether it is a small one."""
        size = rounded(nbytes, ROUND)
        small = size <= SMALL
        block = self._fitting(small, size) or self._mapped_anew(small, size)
        if block is None:
            self.retries += 1
            self._unmap()
            block = self._mapped_anew(small, size)
        if block is None:
            raise FullError
        self._split(small, block, size)
        block.state = "used"
        return small, block

    def give(self, small: bool, block: Block) -> None:
        """Free a block."""
        block.state = "free"
        self._join(small)

    def _fitting(self, small: bool, size: int) -> Block | None:
        """The smallest free block; one that may still grow counts with what it can grow to."""
        pool = self.pools[small]
        after = dict(zip(map(id, pool), pool[1:], strict=False))

        def grown(one: Block) -> int:
            return one.size + (after[id(one)].size if after[id(one)].state == "unmapped" else 0)

        fitting = [one for one in pool if one.state == "free" and one.size >= size]
        return min(fitting, key=grown, default=None)

    def _mapped_anew(self, small: bool, size: int) -> Block | None:
        """A free block of the lowest addresses that are not mapped, with free ones beside them; as it is needed."""
        pool = self.pools[small]
        for k, hole in enumerate(pool):
            if hole.state != "unmapped":
                continue
            first = k - 1 if k and pool[k - 1].state == "free" else k
            run = list(itertools.takewhile(lambda one: one.state != "used", pool[first:]))
            if sum(one.size for one in run) >= size:
                break
        start = run[0].start
        for one in run:
            missing = start + size - one.start
            if one.state == "unmapped" and missing > 0 and not self._map(small, one, min(missing, one.size)):
                return None
        self._join(small)
        return next(one for one in pool if one.start <= start < one.end)

    def _map(self, small: bool, block: Block, nbytes: int) -> bool:
        nbytes = rounded(nbytes, PAGES[small])
        if self.mapped + nbytes > self.cap:
            return False
        self.mapped += nbytes
        self.ever += nbytes
        self.most = max(self.most, self.mapped)
        self._split(small, block, nbytes)
        block.state = "free"
        return True

    def _unmap(self) -> None:
        """Give all whole pages back that nobody uses."""
        for small, page in PAGES.items():
            for one in [one for one in self.pools[small] if one.state == "free"]:
                first, last = rounded(one.start, page), one.end // page * page
                if first >= last:
                    continue
                if first > one.start:
                    one = self._split(small, one, first - one.start)
                if last < one.end:
                    self._split(small, one, last - first)
                self.mapped -= last - first
                one.state = "unmapped"
            self._join(small)

    def _split(self, small: bool, block: Block, size: int) -> Block:
        """Shorten a block; returns what comes after it."""
        if block.size == size:
            return block
        pool = self.pools[small]
        rest = Block(block.start + size, block.size - size, block.state)
        pool.insert(pool.index(block) + 1, rest)
        block.size = size
        return rest

    def _join(self, small: bool) -> None:
        """Make neighbours one that are alike."""
        joined: list[Block] = []
        for one in self.pools[small]:
            if joined and joined[-1].state == one.state != "used":
                joined[-1].size += one.size
            else:
                joined.append(one)
        self.pools[small][:] = joined


def rounded(nbytes: int, unit: int) -> int:
    """Up to a multiple of a unit."""
    return -(-nbytes // unit) * unit


def events(plan: Any) -> list[Event]:
    """What one step of a plan takes and gives back, in order; what is within an operation is gone after it."""
    size = {one["name"]: one["size"] for one in plan.graph.tensors}
    ops = {op["name"]: op for op in plan.graph.ops}
    here: set[str] = set()
    found: list[Event] = []
    for step in plan.result.schedule.steps:
        op = ops.get(step.get("run", ""))
        new = op["writes"] if op is not None else [step["prefetch"]] if "prefetch" in step else []
        for name in new:
            if size[name] and name not in here:
                here.add(name)
                found.append(("take", name, size[name]))
        within = op["choices"][0]["workspace"] if op is not None else 0
        found += [("take", "within", within), ("give", "within", within)] if within else []
        if (name := step.get("free", "")) in here:
            here.remove(name)
            found.append(("give", name, size[name]))
    return [*found, *(("give", name, size[name]) for name in sorted(here))]


def live(step: Iterable[Event]) -> int:
    """The most bytes at once, as the allocator rounds them."""
    now = most = 0
    for verb, _, nbytes in step:
        now += (1 if verb == "take" else -1) * rounded(nbytes, ROUND)
        most = max(most, now)
    return most


def played(step: list[Event], cap: float) -> Iterator[Allocator]:
    """The allocator after each of some steps under a cap, each with the retries and the bytes mapped in that step."""
    allocator = Allocator(cap)
    for _ in range(STEPS):
        allocator.retries = allocator.ever = 0
        blocks: dict[str, tuple[bool, Block]] = {}
        for verb, name, nbytes in step:
            if verb == "take":
                blocks[name] = allocator.take(nbytes)
            else:
                allocator.give(*blocks.pop(name))
        yield allocator


def row(step: list[Event], room: float) -> str:
    """What a step does once it repeats, with so much more memory than is live."""
    try:
        *_, last = played(step, live(step) * (1 + room))
    except FullError:
        return "out of memory"
    return f"{last.retries}, {last.ever / 1e9:.2f} GB" if last.retries else "none"


def main() -> None:
    """Print a table of a network's plans."""
    import torch
    from bench.gpu.models import PRECISIONS, make

    import memsched as ms
    import memsched.torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="model:precision")
    parser.add_argument("--device", default="h100", help="a machine")
    parser.add_argument("--small", action="store_true", help="its tiny cousin")
    given = parser.parse_args()
    model, _, precision = given.network.partition(":")
    task = make(model, small=given.small, device=torch.device("cpu"))
    dtype = PRECISIONS[precision]
    with contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype):
        whole = memsched.torch.plan(task.model, task.args, budget="100%", device=given.device)
    least, most, rooms = ms.min_memory(whole.graph), ms.peak_memory(whole.graph), (0.01, 0.03, 0.06, 0.1, 0.15, 0.2)
    cells = []
    for share in (1.0, 0.6, 0.4, 0.2):
        plan = whole if share == 1.0 else whole.at(int(least + share * (most - least)), time_limit=2.0)
        step = events(plan)
        *_, free = played(step, float("inf"))
        lost = f"{100 * (free.most / live(step) - 1):.1f} %"
        cells.append([f"{share:g}", f"{live(step) / 1e9:.2f} GB", lost, *(row(step, room) for room in rooms)])
    head = ["budget", "live", "lost without a cap", *(f"retries with {room:.0%} more" for room in rooms)]
    print(table(head, cells))


if __name__ == "__main__":
    main()
