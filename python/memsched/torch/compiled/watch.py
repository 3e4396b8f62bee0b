"""The first step under each plan is counted, operation by operation: what it takes beyond its budget is told."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from memsched.errors import InfeasibleError
from memsched.support.formats import format_bytes
from memsched.support.units import parse_bytes
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.laps import Timed, asks_for_another_plan
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.private import is_batched, saving_is_hooked
from memsched.torch.compiled.unit import Unit, count
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.compiled.updates import Updates
from memsched.torch.meter import Meter

_MOST = 3  # steps of a kind that are counted, until one followed a single plan


class Watch:
    """Counts steps, each kind of them once.

    Compiled graphs allocate where no meter sees it. Where hooks keep what is saved, and under vmap, nothing is counted.
    """

    def __init__(self, options: Options) -> None:
        self._options, self._eager = options, options.mode == "eager"
        self._reserve = parse_bytes(options.reserve, "reserve")
        self._unseen: weakref.WeakKeyDictionary[Unit, int] = weakref.WeakKeyDictionary()
        self._begun: Counter[Hashable] = Counter()  # how often a kind of step was counted
        self._meter: Meter | None = None
        self._kind: Hashable = None
        self._profiled = options.profile_steps

    def begin(self, kind: Hashable, device: torch.device, args: Sequence[Any], updates: Updates | None) -> None:
        """A step of some kind begins, with updates, if it has some."""
        states = list(updates.lasting.on_device()) if updates is not None else []
        count(states)
        if updates is not None and not updates.lasting.settled:
            return
        if not self._eager or self._begun[kind] == _MOST or saving_is_hooked() or any(map(is_batched, args)):
            return
        self._begun[kind] += 1
        self._kind, self._meter = kind, Meter(device.type)
        self._meter.count(states)

    @property
    def counts(self) -> bool:
        """Whether the present step is counted."""
        return self._meter is not None

    @property
    def looks(self) -> bool:
        """Whether it has to be told when the present step is over."""
        return self.counts or self._profiled > 0

    def timed(self, units: Iterable[Timed]) -> bool:
        """The present step, of these graphs, is over: whether their times ask for another plan."""
        return asks_for_another_plan(units, self._profiled, counts=not self.counts)

    @property
    def peak(self) -> int | None:
        """The most bytes that the present step has allocated at a time, if it is counted."""
        return self._meter.peak if self._meter is not None else None

    def within(self) -> contextlib.AbstractContextManager[object]:
        """What runs within is a part of the step."""
        return self._meter or contextlib.nullcontext()

    def arriving(self, gradients: Sequence[Any], beside: int) -> None:
        """Gradients arrive; so many bytes were there beside them when they were made."""
        if any(map(is_batched, gradients)):
            self._meter = None
        if self._meter is not None:
            self._meter.count((one for one in gradients if isinstance(one, torch.Tensor)), beside)

    @property
    def options(self) -> Options:
        """With room for the bytes that any step took beyond its plan, as long as one of its graphs lives."""
        if self._unseen:
            gc.collect()  # graphs that PyTorch has dropped, which hold each other
        return replace(self._options, reserve=self._reserve + max(self._unseen.values(), default=0))

    @contextlib.contextmanager
    def blamed(self, options: Options) -> Iterator[None]:
        """Where there is no plan with these options, the error says how much of what is needed that is."""
        try:
            yield
        except InfeasibleError as error:
            if unseen := parse_bytes(options.reserve, "reserve") - self._reserve:
                said = f"{format_bytes(unseen)} of that are what an earlier step took beyond its plan"
                raise InfeasibleError(f"{error}; {said}", error.min_memory) from None
            raise

    def leave(self) -> None:
        """What this step takes beyond its plan is told already."""
        self._meter = None

    def end(self, plans: Sequence[CompiledPlan | None], units: Iterable[Unit]) -> bool:
        """Whether a step of these graphs, whose calls followed these plans, took more than its budget.

        The bytes beyond its plan are then kept. What several plans take together is not known before.
        """
        meter, self._meter = self._meter, None
        plan = plans[0] if plans else None
        if meter is None or plan is None or any(one is not plan for one in plans) or len(plans) != plan.visits:
            return False
        self._begun[self._kind] = _MOST
        known = plan.resident.reserve - self._reserve  # of such bytes
        taken = plan.process_bytes(meter.peak) - known
        if taken <= plan.result.schedule.budget:
            return False
        unseen = taken + known - plan.peak_memory
        said = f"the last step exceeded the budget: it took {format_bytes(unseen)} more than planned, as an operation "
        said += "allocates more than PyTorch tells of it, or the caller holds more; the next is planned beside that"
        self._unseen |= dict.fromkeys(units, unseen)
        warnings.warn(said, UnplannedWarning, stacklevel=2)
        return True
