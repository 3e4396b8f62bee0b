"""Slow and obvious: what is alive after each operation, and what is still needed. Shares no code with the recorder."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class SlowMeter(TorchDispatchMode):
    """Looks at every storage ever seen after every operation.

    After `measure`, `eager[k]` are the bytes of all storages that are alive after operation k, and `needed[k]` those
    of the storages that operation k or a later one uses, or that outlive the step. Both with the resident bytes.
    """

    def __init__(self, resident: Iterable[Any]) -> None:
        super().__init__()
        self.seen: list[Any] = []  # weak references to storages, by number
        self.sizes: list[int] = []
        self.born: list[int] = []
        self.uses: list[list[int]] = []
        self.alive: list[set[int]] = []
        self.resident = {self.number(tensor, -1) for tensor in resident}
        self.changed: set[int] = set()
        self.eager: list[int] = []
        self.needed: list[int] = []

    def number(self, tensor: Any, now: int) -> int:
        storage = tensor.untyped_storage()
        for number, reference in enumerate(self.seen):
            if reference() is storage:
                return number
        self.seen.append(weakref.ref(storage))
        self.sizes.append(storage.nbytes())
        self.born.append(now)
        return len(self.seen) - 1

    def living(self) -> set[int]:
        return {number for number, reference in enumerate(self.seen) if reference() is not None}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if name.startswith(("prim.", "profiler.")):
            return out
        now = len(self.alive)
        given = [] if "lift_fresh" in name else self.numbers((args, kwargs), -1)
        results = self.numbers(out, now)
        new = any(self.born[number] == now for number in results)
        if results and not new and not func._schema.is_mutable:
            return out  # a view
        only_shapes = "_like" in name or "new_" in name
        self.uses.append([*results, *([] if only_shapes else given)])
        self.alive.append(self.living())
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.changed |= set(self.numbers(value, -1)) - self.resident
        return out

    def numbers(self, value: Any, now: int) -> list[int]:
        return [self.number(t, now) for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]

    def measure(self, step: Callable[[], object]) -> SlowMeter:
        with self:
            kept = step()
        after = self.living()
        del kept
        results = {number for number in after if self.born[number] >= 0 or number in self.changed}
        fixed = sum(self.sizes[number] for number in self.resident)
        for now, alive in enumerate(self.alive):
            future = {number for used in self.uses[now:] for number in used} | results
            inputs = {number for number, born in enumerate(self.born) if born < 0 and number in future}
            born = {number for number, birth in enumerate(self.born) if 0 <= birth <= now}
            # An input that comes up later than now is there already, though the meter has not seen it yet.
            there = alive | {number for number in inputs if number not in self.resident}
            self.eager.append(fixed + self.total(there - self.resident, now))
            self.needed.append(fixed + self.total(((born & future) | inputs) - self.resident, now))
        return self

    def total(self, numbers: set[int], now: int) -> int:
        return sum(self.sizes[number] for number in numbers if self.born[number] <= now)
