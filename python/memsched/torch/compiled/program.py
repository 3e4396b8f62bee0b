"""The captured graphs that run in one process under one budget, and the plan that spans them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from memsched.errors import InfeasibleError
from memsched.support.units import parse_bytes
from memsched.torch.compiled.as_graph import Held, Sizes, Visit, held_by_caller
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import CompiledPlan, plan_carefully, plan_step
from memsched.torch.compiled.unit import Unit
from memsched.torch.resident import optimizer_bytes

Key = tuple[int, tuple[int, ...], bool]
"""A unit by its number, the sizes that it is called with, and whether its parameters have gradients already."""


@dataclass(slots=True)
class _Call:
    """A forward of the present step."""

    unit: weakref.ref[Unit]
    values: tuple[int, ...]
    given: dict[int, tuple[int, bool]]
    """Of each storage that it was given, bytes, and whether it lasts."""
    gradients: int
    results: dict[int, int] = field(default_factory=dict)
    version: int = 0


class Program:
    """What the graphs under one budget do, step by step.

    A step is what runs until no backward is due any more. The first time that several graphs run in a step, each is
    planned by itself, with what the others hold; when the step is over, one plan spans them all, and the next steps
    follow it.

    Parameters
    ----------
    options : Options
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._calls: list[_Call] = []
        self._returns: list[int] = []
        self._path: tuple[Key, ...] = ()
        self._due = 0  # backwards that may still run
        self._planned: dict[tuple[Key, ...], int] = {}  # the version for the last call of a path
        self._spanned: set[tuple[Key, ...]] = set()
        self._identities = _Identities()

    def enter(self, unit: Unit, args: Sequence[Any]) -> tuple[int, torch.Tensor]:
        """Choose the version of a forward, and make the marker by which its backward is found."""
        if self._due == 0:
            self._end_step()
        values = tuple(one for one in args if isinstance(one, int))
        gradients = {
            one.grad.untyped_storage()._cdata: one.grad.untyped_storage().nbytes()
            for one in args
            if isinstance(one, torch.Tensor) and one.is_leaf and one.grad is not None
        }
        given = {
            self._identities.of(one.untyped_storage()): (one.untyped_storage().nbytes(), k in unit.static)
            for k, one in enumerate(args)
            if isinstance(one, torch.Tensor) and one.device == unit.joint.device
        }
        call = _Call(weakref.ref(unit), values, given, sum(gradients.values()))
        self._path = (*self._path, (unit.serial, values, bool(gradients)))
        if self._path not in self._planned:
            self._planned[self._path] = self._alone(unit, call)
        call.version = self._planned[self._path]
        self._calls.append(call)
        marker = torch.tensor([call.version, len(self._calls) - 1])
        self._due += 1
        weakref.finalize(marker.untyped_storage(), Program._dropped, weakref.ref(self)).atexit = False
        return call.version, marker

    def left(self, results: Iterable[Any]) -> None:
        """The forward that entered last has these results."""
        call = self._calls[-1]
        for one in results:
            if isinstance(one, torch.Tensor):
                call.results[self._identities.of(one.untyped_storage())] = one.untyped_storage().nbytes()

    def returned(self, visit: int) -> None:
        """The backward of a visit begins."""
        if visit < len(self._calls):
            self._returns.append(visit)

    @staticmethod
    def _dropped(program: weakref.ref[Program]) -> None:
        alive = program()
        if alive is not None:
            alive._due -= 1

    def _end_step(self) -> None:
        """Plan the step that is over, if several graphs ran in it for the first time."""
        calls, path, returns = self._calls, self._path, self._returns
        self._calls, self._path, self._returns = [], (), []
        units = [call.unit() for call in calls]
        if len(calls) < 2 or path in self._spanned or None in units:
            return
        self._spanned.add(path)
        self._span([(unit, call) for unit, call in zip(units, calls, strict=True) if unit is not None], path, returns)

    def _span(self, calls: list[tuple[Unit, _Call]], path: tuple[Key, ...], returns: Sequence[int]) -> None:
        """One plan for all graphs of a step."""
        visits = [Visit(unit.joint, Sizes(unit.joint, call.values)) for unit, call in calls]
        once = list(dict.fromkeys(returns))
        order = once + [k for k in reversed(range(len(calls))) if k not in once]
        held = self._held([call for _, call in calls], visits)
        plan = plan_step(visits, order, held, self._options)
        for k, ((unit, _), visit) in enumerate(zip(calls, visits, strict=True)):
            self._planned[path[: k + 1]] = unit.add(plan, k, len(calls), visit.sizes)

    def _alone(self, unit: Unit, call: _Call) -> int:
        """A version for a graph that no plan spans yet."""
        visit = Visit(unit.joint, Sizes(unit.joint, call.values))
        held = self._held([*self._calls, call], [visit])
        if unit.joint.device.type != "cuda":  # whose allocator knows
            held = replace(held, others=held.others + sum(self._kept(earlier) for earlier in self._calls))
        try:
            plan = plan_step([visit], [0], held, self._options)
        except InfeasibleError:
            if not self._calls:
                raise
            plan = plan_carefully(visit, held, self._options)
        return unit.add(plan, 0, 1, visit.sizes)

    def _kept(self, call: _Call) -> int:
        """Bytes that the plan of an earlier forward keeps for its backward."""
        unit = call.unit()
        return unit.versions[call.version].kept if unit is not None else 0

    def _held(self, calls: Sequence[_Call], visits: Sequence[Visit]) -> Held:
        """What is resident in a step of these calls, of which the last ones are these visits."""
        given: dict[int, tuple[int, bool]] = {}
        results: dict[int, int] = {}
        for call in calls:
            given |= call.given
            results |= call.results
        own = [held_by_caller(visit.joint, visit.sizes) for visit in visits]
        lasting = sum(size for size, lasts in given.values() if lasts)
        if not calls[-1].results:  # they are not there yet
            results[-1] = own[-1].results
        device = visits[0].joint.device
        gradients = max(call.gradients for call in calls)
        others = 0
        if device.type == "cuda":
            known = sum(size for size, _ in given.values()) + gradients
            others = max(0, torch.cuda.memory_allocated(device) - known)
        return Held(
            parameters=lasting + sum(one.parameters for one in own),
            inputs=sum(size for key, (size, lasts) in given.items() if not lasts and key not in results),
            results=sum(size for key, size in results.items() if key not in given or not given[key][1]),
            updates=sum(one.updates for one in own),
            random=sum(one.random for one in own),
            gradients=gradients,
            others=others,
            optimizer=optimizer_bytes(self._options.optimizer, device),
            reserve=parse_bytes(self._options.reserve, "reserve"),
        )


class _Identities:
    """A number for each storage that is alive; addresses are used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next = itertools.count()

    def of(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage."""
        key = storage._cdata
        if key not in self._numbers:
            self._numbers[key] = next(self._next)
            weakref.finalize(storage, self._numbers.pop, key, None).atexit = False
        return self._numbers[key]


_PROGRAMS: dict[Options, Program] = {}


def program_of(options: Options) -> Program:
    """The program of a budget: it is the whole process's, so graphs with the same options share it."""
    if options not in _PROGRAMS:
        _PROGRAMS[options] = Program(options)
    return _PROGRAMS[options]


def plans() -> list[CompiledPlan]:
    """The plans that captured graphs of this process follow, in the order in which they were made."""
    versions = [one for program in _PROGRAMS.values() for unit in program.units for one in unit.versions]
    found = [version.plan for version in sorted(versions, key=lambda version: version.serial)]
    return list({id(plan): plan for plan in found}.values())
