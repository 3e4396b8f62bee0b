"""The captured graphs that run in one process under one budget, and the plan that spans them."""

from __future__ import annotations

import bisect
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from memsched.errors import InfeasibleError, MemschedError
from memsched.support.documents import Document
from memsched.support.formats import format_bytes
from memsched.torch.compiled.as_graph import Visit
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.held import (
    Call,
    Due,
    Identities,
    Key,
    Memory,
    Path,
    Place,
    gradient_bytes,
    held_in_step,
    kept_by,
    order_of,
    visits_of,
)
from memsched.torch.compiled.options import Made, Options, within_share
from memsched.torch.compiled.plan import plan_and_document, plan_carefully
from memsched.torch.compiled.private import in_backward, saving_is_hooked
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import NO_LOSS, LossBytes
from memsched.torch.compiled.spans import Spanned, spanned
from memsched.torch.compiled.uncaptured import over_budget_at_first
from memsched.torch.compiled.unit import SERIAL, Unit, distinct
from memsched.torch.compiled.unplanned import WITHIN_A_STEP, UnplannedWarning
from memsched.torch.compiled.updates import Updates
from memsched.torch.compiled.watch import Watch
from memsched.torch.optimizer_state import kind_of_state

_MOST_ALONE, _MOST_SOUGHT, _MOST_CALLS, _MOST_ORDERS = 4, 32, 256, 8
_SHARES = (0.75, 0.5, 0.25, 0.0)  # of the way from the least memory of a plan to the budget


class Group:
    """What the graphs under one budget do, step by step.

    A step is what runs until no backward is due any more. The first time that several graphs run in a step, each is
    planned by itself, with what the others hold; when the step is over, one plan spans them all, and the next steps
    follow it.

    A graph that has met many sizes follows, for others, the plan of larger ones. Results may be kept whose backward
    never runs. After very many calls a step ends all the same: the next begins with the calls that are due by then.

    `loss` is what the caller needs between the last forward and its backward, `known` are plans that were made before,
    by `key_of_step`. `updates` are a part of the step.
    """

    def __init__(
        self,
        options: Options,
        *,
        loss: LossBytes = NO_LOSS,
        known: Mapping[str, Document] | None = None,
        updates: Updates | None = None,
    ) -> None:
        self.updates = updates
        self.options, self._loss, self._plans = options, loss, known or {}
        self.units: weakref.WeakSet[Unit] = weakref.WeakSet()
        self._calls: list[Call]
        self._returns: list[int]
        self._start = Place(())
        self._place: Place  # after the calls of the present step so far
        self._owners: dict[Any, int]  # numbers of the parameters of the present step's calls
        self._seen: Memory  # what the calls of the present step were given and returned
        self._more: int  # bytes beside the calls of the present step, for which their plans have room
        self._states: dict[Any, int] = {}
        self._begin_step()
        self.due, self.allowed = set[int](), 0  # calls whose backward may run; bytes of a step, whatever its share
        self._planned: dict[Path, int] = {}  # the version for the last call of a path
        self._orders: dict[Path, list[list[int]]] = {}  # in which the backwards of steps of several graphs have run
        self._spanned: dict[Path, Spanned] = {}
        self._refused: dict[Path, tuple[str, int]] = {}  # steps that no plan spans, and why
        self._known: set[Path] = set()  # calls that need not be looked at again
        self._sought: dict[Path, None] = {}  # steps whose calls are looked at until they come again
        self._alone_of: dict[Key, list[int]] = {}  # the versions of a graph by itself
        self._met: dict[Any, list[Key]] = {}  # those of known calls, by the path before them, unit and sizes
        self._first: dict[Any, int] = {}  # under checkpoint, the version of the last first run,
        self._again: dict[Any, int] = {}  # and that of the plan of a step of second runs
        self._identities = Identities()
        self.watch = Watch(options)
        self._serials, self.entering = itertools.count(), threading.RLock()  # by one thread at a time
        ALIVE.add(self)

    def forget(self) -> None:
        """Its plans are no longer among those that `plans` lists."""
        ALIVE.discard(self)

    def plans(self) -> list[CompiledPlan]:
        """Of all its graphs; the one that was followed last comes last."""
        return distinct(list(self.units))

    def enter(self, unit: Unit, args: Sequence[Any]) -> Due:
        """Choose the version of a forward."""
        if self.updates is not None:
            self.updates.entered()
        if not self.due:
            self._end_step()
        elif self._thread != threading.get_ident() and not in_backward():  # which may have a thread of its own
            raise MemschedError(WITHIN_A_STEP)
        elif len(self._calls) >= _MOST_CALLS:
            self._cut_step()
        asked = self._asked(unit, args)
        call = Call(unit.itself, asked, next(self._serials))
        place = self._place.after.get(asked) or self._looked_up(unit, args, call)
        call.key, call.version = place.path[-1], place.version
        if saving_is_hooked():
            call.version = self._saves_alike(call, asked[:4], call.version)
        unit.followed[call.version] = next(SERIAL)
        self._place = place  # only now: where planning raises, the step is as before
        self._calls.append(call)
        self._seen.add([args[k] for k in unit.inputs])
        return Due(self, call)

    def _looked_up(self, unit: Unit, args: Sequence[Any], call: Call) -> Place:
        """Where the step is after a call, planned if nobody has planned it."""
        asked, before = call.key, self._place
        call.key, more = self._key(unit, asked)
        path = (*before.path, call.key)
        if path in self._refused:
            raise InfeasibleError(*self._refused[path])
        if path not in self._known:
            call.record(args, unit, self._identities)
        if path not in self._planned:
            self._planned[path] = self._alone(unit, call, self.watch.options)
        plan = unit.versions[self._planned[path]].plan
        if self.updates is not None:
            self.updates.follow(plan)
        if not self._calls and plan is not None:
            self.watch.begin((path, self._planned[path]), unit.joint.device, args, self.updates)
        self._more += more
        place = Place(path, self._planned[path], path in self._known)
        if place.known and not more and self.updates is None:  # whose states may have to come
            before.lead(asked, place)
        return place

    def _look_up_anew(self) -> None:
        """What calls follow has changed."""
        self._start, self._place = Place(()), Place(self._place.path)

    def marker(self, due: Due) -> torch.Tensor:
        """What tells a call, as a tensor; while that lives, its backward may run."""
        made = torch.tensor([due.call.version, due.call.serial], device="cpu")
        weakref.finalize(made.untyped_storage(), due.over).atexit = False
        return made

    def _asked(self, unit: Unit, args: Sequence[Any]) -> Key:
        fixed, inputs = [args[k] for k in unit.fixed], [args[k] for k in unit.inputs]
        held = gradient_bytes(args[k] for k in unit.fixed if k not in unit.waiting) + gradient_bytes(inputs)
        owner = self._owners.setdefault(tuple(map(id, fixed)), len(self._owners))
        given = self._seen.bytes_beside(inputs)
        leaves = tuple([k for k in unit.inputs if args[k].requires_grad and args[k].is_leaf])
        return Key(unit.serial, unit.numbers(args), unit.whole(args), held, given, owner, self._state, leaves)

    def _key(self, unit: Unit, asked: Key) -> tuple[Key, int]:
        """Where a call is planned, and the bytes beside it that this plan is not for but has room for.

        Without any gradients, which is most steps, there is a plan of its own.
        """
        for other in self._met.get((self._place.path, asked[:3], asked[5:]), ()):
            more = max(0, asked.given - other.given) + max(0, asked.gradients - other.gradients)
            alike = bool(other.gradients) == bool(asked.gradients)
            if alike and (more == 0 or self._more + more <= self._room(unit, other)):
                return other, more
        return asked, 0

    def _saves_alike(self, call: Call, asked: tuple[Any, ...], version: int) -> int:
        """The version where hooks keep what is saved: a second run, in a backward, must save what the first did."""
        if in_backward():
            call.again = asked
            return self._first.get(asked, self._first.get(asked[:3], version))
        self._first[asked] = self._first[asked[:3]] = self._again.get(asked, version)
        return self._first[asked]

    def _room(self, unit: Unit, key: Key) -> int:
        """What the plan of a call leaves of its budget."""
        path = (*self._place.path, key)
        plan = unit.versions[self._planned[path]].plan
        return plan.result.schedule.budget - plan.peak_memory if plan is not None else 0

    def _know(self, path: Path) -> None:
        """Calls need not be looked at again, or beside less, if no step that they may be of is to be planned."""
        known = self._known.union(one[: k + 1] for one in self._sought for k in range(len(one)))
        for k, key in enumerate(path):
            if path[: k + 1] in self._planned and path[: k + 1] not in known:
                self._known.add(path[: k + 1])
                bisect.insort(self._met.setdefault((path[:k], key[:3], key[5:]), []), key)

    def _look_again(self, path: Path) -> None:
        self._sought[path] = None
        self._look_up_anew()
        if len(self._sought) > _MOST_SOUGHT:
            del self._sought[next(iter(self._sought))]
        for k, key in enumerate(path):
            if path[: k + 1] in self._known:
                self._known.remove(path[: k + 1])
                self._met[path[:k], key[:3], key[5:]].remove(key)

    def left(self, unit: Unit, found: Sequence[Any]) -> None:
        """The forward that entered last has these results, and others behind them."""
        call, returned = self._calls[-1], [(node, found[k]) for k, node in unit.returned]
        self._seen.add([one for _, one in returned])
        if call.recorded:
            sizes = unit.sizes(call.key.numbers, call.key.whole)
            for node, one in returned:
                storage = one.untyped_storage()
                counted = max(map(sizes.bytes_of, unit.joint.storages_of(node)))  # more than those without data show
                call.results[self._identities.of(storage)] = max(storage.nbytes(), counted)

    def returned(self, serial: int, beside: int) -> None:
        """The backward of a call begins; PyTorch made copies of gradients of so many bytes for it."""
        self._returns.append(serial)
        call = next((one for one in self._calls if beside and one.serial == serial), None)
        unit = call.unit() if call is not None else None
        if call is None or unit is None:
            return
        unit.beside[call.key.numbers] = max(beside, unit.beside.get(call.key.numbers, 0))
        more = beside - unit.versions[call.version].room
        if more > 0:
            self.watch.leave()
            self._forget(call.key)
            said = "a gradient arrives with other strides than PyTorch traced, and is copied: this step exceeds the "
            said += f"budget by up to {format_bytes(int(more))}; the next is planned with the copy"
            warnings.warn(said, UnplannedWarning, stacklevel=2)

    def _forget(self, key: Key) -> None:
        """Plan anew what calls of a graph with some numbers, and the steps that they are in, when they come again."""
        stale = {path for path in self._planned if any(one[:2] == key[:2] for one in path)}
        self._known -= stale
        self._look_up_anew()
        for path in stale:
            del self._planned[path]
            self._spanned.pop(path, None)
        self._met = {
            before: [one for one in met if (*before[0], one) in self._planned] for before, met in self._met.items()
        }

    def _begin_step(self) -> None:
        self._calls, self._returns, self._seen, self._owners, self._more = [], [], Memory(), {}, 0
        self._place, self._thread = self._start, threading.get_ident()
        self._state = self._states.setdefault(kind_of_state(self.options.optimizer), len(self._states))

    def _end_step(self) -> None:
        """Plan the step that is over, if several graphs ran in it for the first time."""
        if len(self._calls) <= 1 and self._place.known and not self.watch.looks:
            self._begin_step()
            return
        calls, path, order = self._calls, self._place.path, order_of(self._calls, self._returns)
        self._begin_step()
        units = [unit for call in calls if (unit := call.unit()) is not None]
        alive = len(units) == len(calls)
        plans = [unit.versions[call.version].plan for unit, call in zip(units, calls, strict=True)] if alive else ()
        taken = self.watch.peak
        if self.watch.timed(units):
            self._plan_anew()
        if self.watch.end(plans, units):
            self._plan_anew()
        if len(calls) > 1 and alive and self._met_order(path, order):
            if not all(call.recorded for call in calls):
                self._look_again(path)
                return
            self._sought.pop(path, None)
            try:
                self._span(units, calls, path, taken)
            except InfeasibleError as error:  # each graph by itself would run, but not all together
                self._refused[path] = str(error), error.min_memory
                self._look_up_anew()
                raise
        if path not in self._known:
            self._know(path)

    def _plan_anew(self) -> None:
        self._look_up_anew()
        self._planned, self._spanned, self._known, self._met, self._alone_of = {}, {}, set(), {}, {}

    def _met_order(self, path: Path, order: list[int]) -> bool:
        """Note the order of a step's backwards; whether no plan fits in all orders that were met."""
        orders = self._orders.setdefault(path, [])
        if order not in orders and len(orders) == _MOST_ORDERS:
            said = f"the backwards of a step of {len(order)} graphs run in more than {_MOST_ORDERS} orders; in others "
            said += "than the first, it may need more memory than the budget"
            warnings.warn(said, UnplannedWarning, stacklevel=2)
        elif order not in orders:
            orders.append(order)
        return path not in self._spanned or len(self._spanned[path].orders) < len(orders)

    def _cut_step(self) -> None:
        """End a step that has become too long to be planned as one."""
        due = [call for call in self._calls if call.due]
        if len(due) == _MOST_CALLS:
            said = f"the backwards of more than {_MOST_CALLS} graphs are due; no plan spans so many, and they may need "
            said += "more memory than the budget: capture more of the model as one graph"
            warnings.warn(said, UnplannedWarning, stacklevel=2)
        self.watch.leave()
        self._calls = due[-_MOST_CALLS // 2 :]
        self._place = Place(tuple(call.key for call in self._calls))
        self._returns, self._seen, self._owners, self._more = [], Memory(), {}, 0

    def _span(self, units: Sequence[Unit], calls: Sequence[Call], path: Path, taken: int | None) -> None:
        """One plan for all graphs of a step, which took so many bytes, if they were counted.

        The steps that begin alike must fit beside it.
        """
        visits, orders = visits_of(units, calls, self._loss), self._orders[path][::-1]
        options = self.watch.options
        held = held_in_step(calls, visits, options)
        step = self._within_share(options, lambda one: spanned(units, visits, held, orders, one, self._plans))
        plan = step.plan
        followed = [unit.versions[call.version] for unit, call in zip(units, calls, strict=True)]
        if step.exceeded(followed, taken):
            warnings.warn(over_budget_at_first(taken is not None, units), UnplannedWarning, stacklevel=2)
        self._spanned = {one: known for one, known in self._spanned.items() if known.alive and one != path}
        alike = {one: known for one, known in self._spanned.items() if one[0] == path[0]}
        for tried in (plan, *(step.with_less(options, share) for share in _SHARES if alike)):
            if tried is None:
                continue
            made = {path[: k + 1]: version for k, version in enumerate(step.add(units, tried))}
            keeps = {here: unit.versions[made[here]].kept for here, unit in zip(made, units, strict=True)}
            old = {here: self._planned[here] for here in made if any(one[: len(here)] == here for one in alike)}
            small = {here: one for here, one in old.items() if units[len(here) - 1].versions[one].kept <= keeps[here]}
            for chosen in (made | small, made, made | old):
                planned = self._planned | chosen
                if step.fits(step.versions(path, planned), tried) and all(
                    known.fits(known.versions(one, planned), known.plan) for one, known in alike.items()
                ):
                    self._planned, self._spanned[path] = planned, step
                    self._look_up_anew()
                    again = zip(calls, made, strict=True)
                    self._again |= {call.again: planned[here] for call, here in again if call.again}
                    return
        said = f"the budget of {format_bytes(plan.result.device.memory)} is too small for steps that begin alike: "
        said += "no plan of one leaves room for the others"
        raise InfeasibleError(said, max(one.enough for one in (step, *alike.values())))

    def _alone(self, unit: Unit, call: Call, options: Options) -> int:
        """A version for a graph that no plan spans yet."""
        key, eager = call.key, options.mode == "eager"
        if eager and not self._calls and (larger := unit.larger(key, self._alone_of)) is not None:
            return larger
        found = self._alone_of.setdefault(key, [])
        if len(found) == _MOST_ALONE:  # it keeps being called while others hold more and more
            return found[-1]
        (visit,) = visits_of([unit], [call], self._loss)
        held = held_in_step([*self._calls, call], [visit], options)
        if unit.joint.device.type != "cuda":  # whose allocator knows
            held = replace(held, others=held.others + kept_by(self._calls))
        if not eager:
            found.append(self._compiled(unit, visit, held, options))
            return found[-1]
        try:
            if len(found) == _MOST_ALONE - 1:
                plan = plan_carefully(visit, held, options)
            else:
                made = partial(plan_and_document, [visit], [0], held)
                plan, _ = self._within_share(options, lambda one: made(one, self._plans))
        except InfeasibleError:
            if not self._calls:
                raise
            plan = plan_carefully(visit, held, options)
        found.append(unit.add(plan, 0, 1, visit.sizes, visit.beside))
        return found[-1]

    def _compiled(self, unit: Unit, visit: Visit, held: Resident, options: Options) -> int:
        """The same, compiled by Inductor."""
        from memsched.torch.compiled.fit import Fitting  # Inductor takes seconds to import

        fitting = Fitting([unit.halves(visit)], [visit], held, options)
        try:
            plan, (way,) = self._within_share(options, fitting.fit)
        except InfeasibleError as error:
            found = fitting.within(replace(options, budget=error.min_memory)) if self._calls else 0
            if isinstance(found, int):
                raise
            plan, (way,) = found
        return unit.add_code(plan, visit, way, fitting.counted([way]).kept[0])

    def _within_share(self, options: Options, made: Callable[[Options], Made]) -> Made:
        with self.watch.blamed(options):
            return within_share(options, [self.allowed, *(one.result.schedule.budget for one in self.plans())], made)


ALIVE: weakref.WeakSet[Group] = weakref.WeakSet()
