"""What may run, and when, in Checkmate's class (Jain et al., 2020): ops by number, in the order of the graph.

Turn t, which the paper calls stage t, ends with the first run of op t. Before it, ops below t may run again, each once,
in their order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memsched._core import Graph
from memsched.support.checks import EXACT_BYTES
from memsched.support.documents import Document

INPUT = -1  # the writer of what is there from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run an op: an algorithm, and whether the tape is skipped."""

    alg: str
    skip: bool
    seconds: float
    items: frozenset[int]  # that it writes
    scratch: int  # bytes: the workspace, and what is written for nobody

    def bytes(self, sizes: Sequence[int]) -> int:
        return self.scratch + sum(sizes[item] for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Tensors that come and go together, as they have the same writer and the same readers."""

    writer: int
    readers: frozenset[int]
    size: int  # bytes


Position = tuple[int, int]  # (turn, op): where the op may run
Runs = list[tuple[int, Way]]  # ops, in the order in which they run


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """A graph's runs. Weights stay on the device; `always` are their bytes and the resident ones."""

    ways: list[list[Way]]  # of each op, those that no other one serves
    items: list[Item]  # what some op reads, but weights
    touched: list[set[int]]  # of each op, the numbers of the items that it reads or writes
    last: list[int]  # of each op, the last turn in which it may run
    always: int
    start: int  # bytes at time 0

    @property
    def variables(self) -> int:
        """Most variables of a program: one per way and one per touched item, wherever an op may run."""
        places = [1 + last - op for op, last in enumerate(self.last)]
        each = [len(ways) + len(items) for ways, items in zip(self.ways, self.touched, strict=True)]
        return sum(count * more for count, more in zip(places, each, strict=True))

    def seconds(self, of: Callable[[Iterable[float]], float]) -> float:
        """Of one run of each op, in its fastest (min) or slowest (max) way."""
        return math.fsum(of(way.seconds for way in ways) for ways in self.ways)

    def positions(self) -> list[Position]:
        """Where ops may run, in this order."""
        return [(turn, op) for turn in range(len(self.last)) for op in range(turn + 1) if self.last[op] >= turn]

    @property
    def need(self) -> int:
        """Bytes of the largest run, which no choice of runs can do without."""
        runs = [
            min(way.scratch + self._bytes(self.before(op, way, set()) | way.items) for way in ways)
            for op, ways in enumerate(self.ways)
        ]
        return self.always + max(runs, default=0)

    def before(self, op: int, way: Way, after: set[int]) -> set[int]:
        """Items that are held before a run, for those that are wanted after it."""
        return (after - way.items) | {item for item in self.touched[op] if self.items[item].writer != op}

    def peak(self, runs: Runs) -> int:
        """Bytes at the worst moment; of runs that read what no earlier one has written, more than there can be."""
        peak, held = self.start, set[int]()
        for op, way in reversed(runs):
            before = self.before(op, way, held)
            peak = max(peak, self.always + self._bytes(held | before | way.items) + way.scratch)
            held = before
        return peak if all(self.items[item].writer == INPUT for item in held) else EXACT_BYTES + 1

    def lean(self, runs: Runs, memory: int, until: float) -> Runs:
        """Without runs again that the memory does not ask for, such as those that take no time."""
        left, ran = list(runs), [op for op, _ in runs]
        for k in reversed(range(len(runs))):
            if ran[k] in ran[:k] and time.monotonic() < until:
                fewer = left[:k] + left[k + 1 :]
                if self.peak(fewer) <= memory:
                    left = fewer
        return left

    def _bytes(self, items: set[int]) -> int:
        return sum(self.items[item].size for item in items)


def fewest_variables(ops: Sequence[Document]) -> int:
    """At least as many variables has the program of a graph: one wherever an op may run. Faster than `turns_of`."""
    last = {name: k for k, op in enumerate(ops) for name in op["reads"]}
    until = [
        k if op.get("once") else max((last.get(name, k) for name in op["writes"]), default=k)
        for k, op in enumerate(ops)
    ]
    return sum(until) - sum(range(len(ops))) + len(ops)


def turns_of(graph: Graph, *, timed: bool) -> Turns:
    """Read a graph. Not `timed`: only bytes matter, and slower ways that need less stand for faster ones."""
    tensors, ops = graph.tensors, graph.ops
    size = {str(tensor["name"]): int(tensor["size"]) for tensor in tensors}
    weights = {str(tensor["name"]) for tensor in tensors if tensor["role"] == "weight"}
    writer = {name: k for k, op in enumerate(ops) for name in op["writes"]}
    taped = {name for op in ops for name in op.get("tape", ())}
    readers: dict[str, set[int]] = {name: set() for name in size}
    for k, op in enumerate(ops):
        for name in op["reads"]:
            readers[name].add(k)
    alike: dict[tuple[int, bool, frozenset[int]], list[str]] = {}
    for name in size:
        if readers[name] and name not in weights:
            alike.setdefault((writer.get(name, INPUT), name in taped, frozenset(readers[name])), []).append(name)
    items = [
        Item(writer=source, readers=users, size=sum(size[name] for name in names))
        for (source, _, users), names in alike.items()
    ]
    number = {name: k for k, names in enumerate(alike.values()) for name in names}
    sizes = [item.size for item in items]
    ways = [_ways(op, size, number, sizes, timed) for op in ops]
    always = int(graph.resident) + sum(size[name] for name in weights)
    given = [name for name in size if name not in writer and name not in weights]
    touched: list[set[int]] = [set() for _ in ops]
    for k, item in enumerate(items):
        for user in item.readers if item.writer == INPUT else item.readers | {item.writer}:
            touched[user].add(k)
    return Turns(
        ways=ways,
        items=items,
        touched=touched,
        last=_last([bool(op.get("once")) for op in ops], items),
        always=always,
        start=always + sum(size[name] for name in given),
    )


def _ways(op: Document, size: dict[str, int], number: dict[str, int], sizes: list[int], timed: bool) -> list[Way]:
    found: list[Way] = []
    for skip in (False, True) if op.get("tape") else (False,):
        writes = set(op["writes"]) - set(op["tape"] if skip else ())
        items = frozenset(number[name] for name in writes if name in number)
        scratch = sum(size[name] for name in writes if name not in number)
        needs = [op.get("skip_workspace", one["workspace"]) if skip else one["workspace"] for one in op["choices"]]
        least = math.inf  # of those that are as frugal
        for need, choice in sorted(zip(needs, op["choices"], strict=True), key=lambda one: (one[0], one[1]["time"])):
            if choice["time"] < least:
                seconds = least = float(choice["time"])
                found.append(
                    Way(alg=choice["alg"], skip=skip, seconds=seconds, items=items, scratch=scratch + int(need))
                )
    # One serves another if it writes as much, in no more bytes and, where that matters, no more time.
    order = sorted(found, key=lambda way: (way.bytes(sizes), way.seconds if timed else 0.0, -len(way.items)))
    fastest: dict[frozenset[int], float] = {}  # of the ways so far, which need no more bytes, with these items
    best = set()
    for way in order:
        seconds = way.seconds if timed else 0.0
        if not any(items >= way.items and other <= seconds for items, other in fastest.items()):
            best.add(way)
            fastest[way.items] = seconds
    return [way for way in found if way in best]


def _last(once: list[bool], items: Iterable[Item]) -> list[int]:
    """Of each op the last turn in which a run of it may serve: what it writes is read there, or later."""
    users: list[set[int]] = [set() for _ in once]
    for item in items:
        if item.writer != INPUT:
            users[item.writer] |= item.readers
    last = list(range(len(once)))
    for op in reversed(range(len(once))):
        if not once[op]:
            last[op] = max((last[user] for user in users[op]), default=op)
    return last
