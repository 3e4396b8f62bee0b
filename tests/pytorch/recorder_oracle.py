"""Slow and obvious: which operations of a step must keep their order, found by looking at values and random state."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.torch.recorder.record import record_all

WINDOW = 50  # operations whose number a sum of powers of two can tell


class Watcher:
    """Called after each operation, as `times` of a recording; its seconds tell later where the operation went."""

    def __init__(self, resident: Iterable[Any], window: int) -> None:
        self.resident = list({tensor.untyped_storage()._cdata: tensor for tensor in resident}.values())
        self.window = window
        self.before = self.values()
        self.random = torch.random.get_rng_state()
        self.seen: list[Any] = []  # weak references to storages
        self.reads: list[set[int]] = []
        self.writes: list[set[int]] = []
        self.draws: list[bool] = []
        self.fixed = {self.number(tensor) for tensor in self.resident}

    def values(self) -> list[Any]:
        return [torch.tensor(tensor.untyped_storage().tolist(), dtype=torch.uint8) for tensor in self.resident]

    def number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        for number, reference in enumerate(self.seen):
            if reference() is storage:
                return number
        self.seen.append(weakref.ref(storage))
        return len(self.seen) - 1

    def numbers(self, value: Any) -> set[int]:
        return {self.number(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)}

    def __call__(self, func: Any, args: Any, kwargs: Any, out: Any) -> float:
        index, name = len(self.reads), str(func)
        given, after, random = self.numbers((args, kwargs)), self.values(), torch.random.get_rng_state()
        changed = {
            self.number(tensor)
            for tensor, old, new in zip(self.resident, self.before, after, strict=True)
            if not torch.equal(old, new)
        }
        schema = zip(args, func._schema.arguments, strict=False)
        marked = [value for value, argument in schema if argument.alias_info and argument.alias_info.is_write]
        self.reads.append(set() if "_like" in name or "new_" in name or "lift_fresh" in name else given)
        self.writes.append(changed | self.numbers(marked) | (self.numbers(out) - given))
        self.draws.append(not torch.equal(random, self.random))
        self.before, self.random = after, random
        place = index - WINDOW * self.window
        return 2.0**place if 0 <= place < WINDOW else 0.0

    def conflicts(self) -> set[tuple[int, int]]:
        """Pairs of operations, all of them."""
        found = set()
        for j in range(len(self.reads)):
            for i in range(j):
                both = self.writes[i] & (self.reads[j] | self.writes[j]) | self.reads[i] & self.writes[j]
                if both & self.fixed or (self.draws[i] and self.draws[j]):
                    found.add((i, j))
            for storage in self.reads[j] - self.fixed:
                writers = [i for i in range(j) if storage in self.writes[i]]
                found.update((i, j) for i in writers[-1:])
        return found


def watched(step: Callable[[], object], resident: list[Any]) -> tuple[ms.Graph, Watcher, list[int]]:
    """The reorderable graph of a step, what must keep its order, and the op that each operation belongs to."""
    home: dict[int, int] = {}
    window = 0
    while True:
        watcher = Watcher(resident, window)
        made = record_all(step, resident=resident, times=watcher, reorderable=True).graph
        for position, op in enumerate(made.ops):
            bits = int(op["choices"][0]["time"])
            home.update({WINDOW * window + bit: position for bit in range(WINDOW) if bits >> bit & 1})
        window += 1
        if WINDOW * window >= len(watcher.reads):
            return made, watcher, [home[index] for index in range(len(watcher.reads))]


def edges(made: ms.Graph) -> dict[tuple[int, int], bool]:
    """Pairs of ops between which a tensor passes; whether it has bytes."""
    sizes = {tensor["name"]: tensor["size"] for tensor in made.tensors}
    writer = {tensor: position for position, op in enumerate(made.ops) for tensor in op["writes"]}
    found: dict[tuple[int, int], bool] = {}
    for position, op in enumerate(made.ops):
        for tensor in op["reads"]:
            if tensor in writer:
                pair = (writer[tensor], position)
                found[pair] = found.get(pair, False) or sizes[tensor] > 0
    return found


def reachable(count: int, pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    """By op, those before it; ops are in a topological order."""
    before: list[set[int]] = [set() for _ in range(count)]
    for i, j in sorted(pairs, key=lambda pair: pair[1]):
        before[j] |= {i} | before[i]
    return before


def shuffled(count: int, pairs: Iterable[tuple[int, int]], seed: int) -> list[int]:
    """A random topological order."""
    numbers, wait = random.Random(seed), dict.fromkeys(range(count), 0)
    after: dict[int, list[int]] = {}
    for i, j in pairs:
        after.setdefault(i, []).append(j)
        wait[j] += 1
    ready, order = [op for op in wait if wait[op] == 0], []
    while ready:
        order.append(ready.pop(numbers.randrange(len(ready))))
        for op in after.get(order[-1], ()):
            wait[op] -= 1
            if wait[op] == 0:
                ready.append(op)
    return order


@dataclass(frozen=True, slots=True)
class Spot:
    """A tensor of an operation: a version of a storage, and how to look at it."""

    storage: int
    version: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any


class Script:
    """Called after each operation, as `times` of a recording: a program that runs again in another order.

    Storages that are there before the step change in place, as they do. Each change of another one makes a version of
    its own, so that only what the graph says about them is needed.
    """

    def __init__(self, resident: Iterable[Any]) -> None:
        self.seen: list[Any] = []  # weak references to storages
        self.versions: list[int] = []
        self.random = torch.random.get_rng_state()
        self.before = {self.number(t): t.untyped_storage().clone() for t in resident}
        self.lines: list[tuple[Any, Any, list[Spot], list[Spot]]] = []

    def number(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        for number, reference in enumerate(self.seen):
            if reference() is storage:
                return number
        self.seen.append(weakref.ref(storage))
        self.versions.append(0)
        return len(self.seen) - 1

    def spot(self, tensor: Any) -> Spot:
        number = self.number(tensor)
        shape = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return Spot(number, self.versions[number], *shape, tensor.dtype)

    def __call__(self, func: Any, args: Any, kwargs: Any, out: Any) -> float:
        given = pytree.tree_map_only(torch.Tensor, self.spot, (args, kwargs))
        spots = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Spot)]
        known = {spot.storage for spot in spots}
        schema = zip(args, func._schema.arguments, strict=False)
        marked = [value for value, argument in schema if argument.alias_info and argument.alias_info.is_write]
        written = [self.spot(leaf) for leaf in pytree.tree_leaves(marked) if isinstance(leaf, torch.Tensor)]
        written = list({s.storage: s for s in written if s.storage not in self.before}.values())
        for spot in written:
            self.versions[spot.storage] += 1
        made = [self.spot(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in pytree.tree_leaves(out)]
        self.lines.append((func, given, written, [s if s and s.storage not in known else None for s in made]))  # type: ignore[misc]
        return 0.0

    def run(self, order: Iterable[int]) -> dict[int, Any]:
        """What is in the storages that were there before, after the operations in this order."""
        torch.random.set_rng_state(self.random)
        fixed = {number: storage.clone() for number, storage in self.before.items()}
        held: dict[tuple[int, int], Any] = {}
        for line in order:
            func, given, written, made = self.lines[line]
            for spot in written:
                held[spot.storage, spot.version + 1] = held[spot.storage, spot.version].clone()
            changed = {spot.storage for spot in written}
            shape_only = "_like" in str(func) or "new_" in str(func)

            def look(spot: Spot, changed: set[int] = changed, shape_only: bool = shape_only) -> Any:
                if shape_only:
                    return torch.empty_strided(spot.size, spot.stride, dtype=spot.dtype)
                version = spot.version + (spot.storage in changed)
                storage = fixed[spot.storage] if spot.storage in fixed else held[spot.storage, version]
                return torch.empty(0, dtype=spot.dtype).set_(storage, spot.offset, spot.size, spot.stride)

            args, kwargs = pytree.tree_map_only(Spot, look, given)
            with torch.no_grad():
                out = func(*args, **kwargs)
            for spot, result in zip(made, pytree.tree_leaves(out), strict=True):
                if spot is not None:
                    held[spot.storage, spot.version] = result.untyped_storage()
        return fixed
