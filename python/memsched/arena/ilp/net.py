"""A graph for the integer programs: which op comes before which, and which bytes are alive because of which ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from memsched._core import Graph
from memsched.arena.ilp.model import check_time
from memsched.support.documents import Document

Documents = Sequence[Document]
Runs = list[tuple[list[str], int]]  # by op, the outputs and the workspace of a run
INPUT = -1  # the source of items that exist from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Bytes with a common lifetime: written by `source`, freed after the last of `readers`, or never if `kept`.

    An item without readers that is not `kept` lives only while its source runs.
    """

    tensors: tuple[int, ...]
    source: int
    readers: frozenset[int]
    kept: bool
    size: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The transitive closure of a set of precedences, as bit masks of ops."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, count: int, edges: Iterable[tuple[int, int]], until: float = math.inf) -> Reach:
        """Of any edges without a cycle; after `until` it raises TimeUpError."""
        reach = cls(before=[0] * count, after=[0] * count)
        listed, later = sorted(edges, key=lambda edge: (edge[1], edge[0])), []
        for first, second in listed:
            check_time(until)
            if first < second:
                reach.before[second] |= reach.before[first] | 1 << first
            else:
                later.append((first, second))
        for first, second in sorted(listed, reverse=True):
            check_time(until)
            if first < second:
                reach.after[first] |= reach.after[second] | 1 << second
        for first, second in later:
            reach.add(first, second)
        return reach

    def copy(self) -> Reach:
        return Reach(before=list(self.before), after=list(self.after))

    def add(self, first: int, second: int) -> None:
        """Let `first` run before `second`, which must not run before `first`."""
        if self.before[second] >> first & 1:
            return
        early = self.before[first] | 1 << first
        late = self.after[second] | 1 << second
        for op in bits(late):
            self.before[op] |= early
        for op in bits(early):
            self.after[op] |= late

    def last(self, ops: Iterable[int]) -> list[int]:
        """The ops of a set that come before no other op of the set."""
        mask = sum(1 << op for op in ops)
        return [op for op in bits(mask) if not self.after[op] & mask]


@dataclass(frozen=True, kw_only=True)
class Net:
    """A graph's ops as numbers. `always` counts the bytes of resident, weights and kept inputs.

    What takes more than linear time raises TimeUpError after `until`.
    """

    count: int
    edges: frozenset[tuple[int, int]]
    items: list[Item]  # items that outlive their source, and inputs; alike ones are merged
    scratch: list[int]  # per op: its workspace and outputs that nobody reads, in bytes
    always: int
    until: float  # of time.monotonic()

    @cached_property
    def reach(self) -> Reach:
        """The precedences of the graph."""
        return Reach.of(self.count, self.edges, self.until)

    @cached_property
    def made(self) -> list[int]:
        """Per op, the bytes of the items that it writes."""
        made = [0] * self.count
        for item in self.items:
            if item.source != INPUT:
                made[item.source] += item.size
        return made

    def peak(self, order: Sequence[int]) -> int:
        """The peak of an order in bytes, `always` included."""
        place = {op: k for k, op in enumerate(order)}
        change = [0] * (len(order) + 1)
        for item in self.items:
            change[place.get(item.source, 0)] += item.size
            end = len(order) if item.kept else 1 + max(place[op] for op in item.readers)
            change[end] -= item.size
        peak = alive = self.always
        for k, op in enumerate(order):
            alive += change[k]
            peak = max(peak, alive + self.scratch[op])
        return peak

    def needs(self, reach: Reach) -> list[int]:
        """Per op, the bytes that are alive while it runs in every order that keeps the precedences."""
        made, wanted = self.masks(reach)
        found = []
        for op in range(self.count):
            check_time(self.until)
            alive = sum(self.items[k].size for k in bits(made[op] & wanted[op]))
            found.append(self.always + self.scratch[op] + alive)
        return found

    def instant(self) -> int:
        """The ops that allocate nothing, as a bit mask."""
        writers = {item.source for item in self.items}
        return sum(1 << op for op in range(self.count) if op not in writers and not self.scratch[op])

    def masks(self, reach: Reach) -> tuple[list[int], list[int]]:
        """Per op, the items made by it or an op before it, and those wanted by it or an op after it."""
        from_start = sum(1 << k for k, item in enumerate(self.items) if item.source == INPUT)
        to_end = sum(1 << k for k, item in enumerate(self.items) if item.kept)
        makes, reads = [0] * self.count, [0] * self.count
        for k, item in enumerate(self.items):
            if item.source != INPUT:
                makes[item.source] |= 1 << k
            for op in item.readers:
                reads[op] |= 1 << k
        made, wanted = [from_start] * self.count, [to_end] * self.count
        for op in range(self.count):
            check_time(self.until)
            for other in bits(reach.before[op] | 1 << op):
                made[op] |= makes[other]
            for other in bits(reach.after[op] | 1 << op):
                wanted[op] |= reads[other]
        return made, wanted

    def own_bound(self) -> int:
        """The same in linear time, by what an op reads and writes itself."""
        start = sum(item.size for item in self.items if item.source == INPUT)
        own = [made + scratch for made, scratch in zip(self.made, self.scratch, strict=True)]
        for item in self.items:
            for op in item.readers:
                own[op] += item.size
        return self.always + max([start, *own])

    def bound(self, reach: Reach) -> int:
        """A lower bound on the peak of any order: the largest need of an op, and any first op on top of all inputs."""
        start = sum(item.size for item in self.items if item.source == INPUT)
        return max([self.always + start, *self.needs(reach)])


def bits(mask: int) -> Iterator[int]:
    """The indices of the set bits, in increasing order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def is_topological(order: Sequence[int], reach: Reach) -> bool:
    """Whether each op occurs once, after all its predecessors."""
    done = 0
    for op in order:
        if reach.before[op] & ~done or done >> op & 1:
            return False
        done |= 1 << op
    return len(order) == len(reach.before)


def least_run(op: Document, size: dict[str, int], wanted: set[str]) -> tuple[list[str], int]:
    """Outputs and workspace of an op in the run that needs least; a tape with nothing wanted may be skipped."""
    writes, least = list(op["writes"]), min(int(choice["workspace"]) for choice in op["choices"])
    tape = set(op.get("tape", ()))
    if tape and not tape & wanted:
        skipping = int(op.get("skip_workspace", least))
        if skipping < least + sum(size[name] for name in tape):
            return [name for name in writes if name not in tape], skipping
    return writes, least


def least_runs(tensors: Documents, ops: Documents, keep: frozenset[int]) -> Runs:
    """`least_run` of each op, where everything that is read or kept is wanted."""
    size = {tensor["name"]: int(tensor["size"]) for tensor in tensors}
    wanted = {name for op in ops for name in op["reads"]}
    wanted |= {tensors[k]["name"] for k in keep}
    return [least_run(op, size, wanted) for op in ops]


def lifetimes(tensors: Documents, ops: Documents, keep: frozenset[int], runs: Runs) -> list[Item]:
    """One item per tensor with bytes that is alive at some time, in the graph's order."""
    number = {tensor["name"]: k for k, tensor in enumerate(tensors)}
    source = [INPUT] * len(tensors)
    readers: list[set[int]] = [set() for _ in tensors]
    for k, op in enumerate(ops):
        for name in runs[k][0]:
            source[number[name]] = k
        for name in op["reads"]:
            readers[number[name]].add(k)
    items = []
    for k, tensor in enumerate(tensors):
        kept = k in keep or tensor["role"] == "weight"
        unused = source[k] == INPUT and not readers[k] and not kept  # an input, or a tape that is skipped
        if tensor["size"] > 0 and not unused:
            items.append(
                Item(tensors=(k,), source=source[k], readers=frozenset(readers[k]), kept=kept, size=int(tensor["size"]))
            )
    return items


def edges_of(ops: Documents) -> frozenset[tuple[int, int]]:
    """(writer, reader) of every tensor that one op writes and another reads, including empty ones."""
    writer = {name: k for k, op in enumerate(ops) for name in op["writes"]}
    return frozenset((writer[name], k) for k, op in enumerate(ops) for name in op["reads"] if name in writer)


def net_of(graph: Graph, keep: frozenset[int], until: float = math.inf) -> Net:
    """The Net of a graph."""
    tensors, ops = graph.tensors, graph.ops  # made anew at each look
    edges, runs = edges_of(ops), least_runs(tensors, ops, keep)
    scratch = [workspace for _, workspace in runs]
    always = graph.resident
    alike: dict[tuple[int, frozenset[int], bool], list[Item]] = {}
    for item in lifetimes(tensors, ops, keep, runs):
        if item.source == INPUT and item.kept:
            always += item.size
        elif not item.readers and not item.kept:
            scratch[item.source] += item.size
        else:
            alike.setdefault((item.source, frozenset() if item.kept else item.readers, item.kept), []).append(item)
    items = [
        Item(
            tensors=tuple(k for item in group for k in item.tensors),
            source=source,
            readers=readers,
            kept=kept,
            size=sum(item.size for item in group),
        )
        for (source, readers, kept), group in alike.items()
    ]
    count = len(scratch)
    return Net(count=count, edges=edges, items=items, scratch=scratch, always=int(always), until=until)
