"""Lower bounds for the validator, derived anew from the JSON forms alone, independently of the planners' bounds.

`bound_of_all` holds for every plan that the validator accepts, `bound_of_once` for plans that run each op once in the
order of the graph. docs/algorithms.md has the proofs. Byte counts are Python integers of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

Json = Mapping[str, Any]


class Facts:
    """The data that the bounds need about a graph and a device. Op -1 is time 0, which brings inputs and weights."""

    def __init__(self, graph: Json, device: Json) -> None:
        ops, tensors = graph["ops"], graph["tensors"]
        self.size: dict[str, int] = {tensor["name"]: tensor["size"] for tensor in tensors}
        self.capacity: int = device["memory"] - graph.get("resident", 0)
        self.out, self.back = float(device.get("d2h") or 0), float(device.get("h2d") or 0)
        self.time = [min(float(choice["time"]) for choice in op["choices"]) for op in ops]
        self.reads = [frozenset(op["reads"]) for op in ops]
        self.writes = [frozenset(op["writes"]) for op in ops]
        self.once = [bool(op.get("once")) for op in ops]
        self.writer = {tensor: k for k, names in enumerate(self.writes) for tensor in names}
        self.rank = {name: (self.writer.get(name, -1), k) for k, name in enumerate(self.size)}
        self.readers: dict[str, list[int]] = {name: [] for name in self.size}
        for k, names in enumerate(self.reads):
            for tensor in names:
                self.readers[tensor].append(k)
        # Bytes that every run of an op must hold; without a tape that nobody reads, if that is less.
        held = (reads | writes for reads, writes in zip(self.reads, self.writes, strict=True))
        self.need = [self.least(op, one, skips=not self.tape_is_read(op)) for op, one in zip(ops, held, strict=True)]

    def tape_is_read(self, op: Json) -> bool:
        """Whether some op reads the tape of an op."""
        return any(self.readers[name] for name in op.get("tape") or ())

    def least(self, op: Json, held: Iterable[str], *, skips: bool) -> int:
        """The least bytes of some tensors and the workspace of an op; with `skips`, also without its tape."""
        least: int = min(choice["workspace"] for choice in op["choices"])
        tape, total = set(op.get("tape") or ()), sum(self.size[name] for name in held)
        if not tape or not skips:
            return total + least
        skipping = op.get("skip_workspace")
        skipped = total - sum(self.size[name] for name in tape)
        return min(total + least, skipped + (least if skipping is None else skipping))


def _earliest(time: Sequence[float], excess: Sequence[int], supply: Sequence[int], rate: float) -> list[float]:
    """Earliest start of each op k, if excess[k] of the bytes that supply[0..k] releases must be offloaded before it."""
    clock, left, ready, found = 0.0, 0.0, 0, list[float]()
    for seconds, must, more in zip(time, excess, supply, strict=True):
        ready += more
        if must > left:
            if must > ready or rate == 0:
                return [math.inf] * len(time)
            clock += (must - left) / rate
            left = float(must)
        found.append(clock)
        left += min(max(0.0, ready - left), seconds * rate) if seconds > 0 else 0.0
        clock += seconds
    return found


def bound_of_once(graph: Json, device: Json) -> float:
    """A lower bound in seconds on plans that run each op once, in the order of the graph; infinite if there is none.

    Bytes that exceed the capacity while an op runs must be offloaded before and prefetched after, whichever they are.
    """
    facts, count = Facts(graph, device), len(graph["ops"])
    change, leaves, returns = [0] * (count + 1), [0] * count, [0] * count
    for name, size in facts.size.items():
        touched = sorted({facts.writer.get(name, -1), *facts.readers[name]})
        change[touched[0] + 1] += size  # alive from here to its last use
        change[touched[-1] + 1] -= size
        for before, after in zip(touched[-2::-1], touched[:0:-1], strict=True):
            if after > before + 1:  # may be away while an op runs; must be back for this op
                leaves[touched[0] + 1] += size
                returns[after] += size
                break
    alive = list(accumulate(change))
    beside = [alive[k] - sum(facts.size[name] for name in facts.reads[k]) for k in range(count)]
    excess = [facts.need[k] + beside[k] - facts.capacity for k in range(count)]
    if max(excess, default=0) <= 0:
        return math.fsum(facts.time)
    if any(need > facts.capacity for need in facts.need):
        return math.inf
    out = _earliest(facts.time, excess, leaves, facts.out)
    back = _earliest(facts.time[::-1], excess[::-1], [0, *returns[:0:-1]], facts.back)[::-1]
    around = [out[k] + facts.time[k] + back[k] for k in range(count)]
    return max(math.fsum(facts.time), *around)


def ancestors(facts: Facts, op: int) -> set[int]:
    """The ops that must run before an op."""
    return _reached(op, lambda k: (facts.writer[name] for name in facts.reads[k] if name in facts.writer))


def descendants(facts: Facts, op: int) -> set[int]:
    """The ops that can only run after an op."""
    return _reached(op, lambda k: (reader for name in facts.writes[k] for reader in facts.readers[name]))


def _reached(op: int, following: Callable[[int], Iterable[int]]) -> set[int]:
    found, left = set[int](), [op]
    while left:
        more = set(following(left.pop())) - found
        found |= more
        left += more
    return found


def _closures(facts: Facts) -> tuple[list[int], list[int]]:
    """For each op, as bit masks: the ops that must run before it, and those that can only run after it."""
    count = len(facts.time)
    before, after = [0] * count, [0] * count
    above = [{facts.writer[name] for name in names if name in facts.writer} for names in facts.reads]
    for k in range(count):
        for other in above[k]:
            before[k] |= before[other] | 1 << other
    for k in reversed(range(count)):
        for other in above[k]:
            after[other] |= after[k] | 1 << k
    return before, after


class _Instants:
    """The starts of ops that run once: which bytes are missing then but needed later, and how they may come back.

    A tensor is beside op p if p does not touch it, ops before p write it and ops after p read it.
    """

    def __init__(self, facts: Facts) -> None:
        count = len(facts.time)
        self.facts, self.time, self.compute = facts, np.array(facts.time), math.fsum(facts.time)
        self.bytes = (count + 7) // 8
        before, after = _closures(facts)
        names = [name for name in facts.size if facts.readers[name]]
        self.size = np.array([facts.size[name] for name in names], dtype=float)
        self.writer = np.array([facts.writer.get(name, -1) for name in names], dtype=np.int64)
        again = [name in facts.writer and not facts.once[facts.writer[name]] for name in names]
        self.again = np.array(again, dtype=bool)
        exact = np.int64 if sum(facts.size.values()) < 2**62 else object
        self.missing = np.array([need - facts.capacity for need in facts.need], dtype=object).astype(exact)
        beside = np.zeros((len(names), self.bytes), np.uint8)
        everything = (1 << count) - 1
        for row, name in enumerate(names):
            readers, writer = facts.readers[name], facts.writer.get(name, -1)
            later = reduce(or_, (before[reader] for reader in readers))
            touched = reduce(or_, (1 << reader for reader in readers), 1 << writer if writer >= 0 else 0)
            beside[row] = self.packed((everything if writer < 0 else after[writer]) & later & ~touched)
            self.missing += facts.size[name] * self.flags(beside[row]).astype(exact)
        self.beside = np.ascontiguousarray(beside.T)  # for each eight ops, all tensors contiguously
        self.cheapest = self._cheapest()
        self.candidates = [op for op, once in enumerate(facts.once) if once and self.missing[op] > 0]
        self.before = {op: self.seconds(before[op]) for op in self.candidates}
        self.after = {op: facts.time[op] + self.seconds(after[op]) for op in self.candidates}

    def _cheapest(self) -> npt.NDArray[np.int64]:
        """The ops that can bring bytes back, cheapest first if all their outputs are missing (nearly always so)."""
        chosen = self.again & (self.size > 0)
        brought = np.bincount(self.writer[chosen], self.size[chosen], len(self.time))
        runs = np.flatnonzero(brought)
        return runs[np.argsort(self.time[runs] / brought[runs], kind="stable")]

    def packed(self, ops: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(ops.to_bytes(self.bytes, "little"), np.uint8)

    def flags(self, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.unpackbits(packed, count=len(self.time), bitorder="little")

    def seconds(self, ops: int) -> float:
        return float(self.time[self.flags(self.packed(ops)).view(bool)].sum())

    def link(self, op: int, much: float) -> float:
        """Seconds of a plan in which `much` bytes are offloaded before the op and prefetched after it starts."""
        out, back = much / self.facts.out, much / self.facts.back
        return max(out + back, self.before[op] + back, out + self.after[op])

    def reruns(self, op: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Cumulative bytes that return by recomputing ops, and cumulative seconds, cheapest bytes first."""
        beside = self.beside[op // 8] & np.uint8(1 << op % 8)
        chosen = self.again & (beside > 0)
        brought = np.bincount(self.writer[chosen], self.size[chosen], len(self.time))[self.cheapest]
        runs = brought > 0
        brought, seconds = brought[runs], self.time[self.cheapest][runs]
        order = np.argsort(seconds / brought, kind="stable")  # nearly sorted already, so in linear time
        start = np.zeros(1)
        return np.cumsum(np.concatenate((start, brought[order]))), np.cumsum(np.concatenate((start, seconds[order])))

    def value(self, op: int) -> float:
        """The least makespan over all mixtures of prefetching and recomputing; slightly less to allow for rounding."""
        missing, (brought, seconds) = float(self.missing[op]), self.reruns(op)

        def again(much: float) -> float:
            return math.inf if much > brought[-1] else self.compute + float(np.interp(much, brought, seconds))

        if min(self.facts.out, self.facts.back) == 0:
            return again(missing)
        low, high = 0.0, missing
        if self.link(op, high) <= self.compute:
            return self.compute
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.link(op, middle) < again(missing - middle) else (low, middle)
        return max(self.compute, self.link(op, low), again(missing - high))


def bound_of_all(graph: Json, device: Json, enough: float = math.inf) -> float:
    """A lower bound in seconds on every plan, including plans that recompute, skip a tape or change the order.

    The largest such bound, or the first that is >= `enough` (up to rounding). Infinite: there is no plan.
    """
    facts = Facts(graph, device)
    if any(need > facts.capacity for need in facts.need):
        return math.inf
    best = math.fsum(facts.time)
    needs_more = sum(facts.size.values()) + max(facts.need, default=0) > facts.capacity
    if best >= enough or not any(facts.once) or not needs_more:
        return best
    instants = _Instants(facts)
    linked = min(facts.out, facts.back) > 0
    most = {op: instants.link(op, float(instants.missing[op])) if linked else math.inf for op in instants.candidates}
    for op in sorted(most, key=lambda op: (most[op], instants.missing[op]), reverse=True):
        if best >= min(enough, most[op]):
            break
        best = max(best, instants.value(op))
    return best
