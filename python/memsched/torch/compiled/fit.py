"""Plans for steps that Inductor compiles: what its code holds is counted, and planned again until it fits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from memsched.errors import InfeasibleError, InvalidInputError
from memsched.planners.registry import min_memory
from memsched.problems.budget import parse_memory
from memsched.support.documents import Document
from memsched.support.units import parse_bandwidth
from memsched.torch.compiled.as_graph import Visit
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.halves import Count, Halves, Way
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import plan_and_document, plan_for_another, too_small
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.scratch import Scratch
from memsched.torch.compiled.split import steps_of

_ROUNDS = 6
_ANYWAY = 8  # plans that are tried whatever the budget, from the least memory to almost that of the plain step
_CLOSE = 0.98  # of the budget: a plan whose code holds so much of it is not improved


class Fitted(NamedTuple):
    """A plan, with the peak of its code, and how each of its graphs runs."""

    plan: CompiledPlan
    ways: Sequence[Way]


class Style(NamedTuple):
    """See `Way`."""

    reuse: bool
    last: bool


class Tried(NamedTuple):
    """A plan with its document, and what its code holds."""

    plan: CompiledPlan
    document: Document
    peak: int
    style: Style


class Counted(NamedTuple):
    """What the code of a step holds: the most in any order of its backwards; what each graph keeps in between.

    `scratch` is what convolutions hold within.
    """

    peak: int
    kept: Sequence[int]
    scratch: Scratch


def check_compiled(options: Options, device: torch.device) -> None:
    """Refuse what compiled code cannot do yet."""
    if options.bandwidth is not None and parse_bandwidth(options.bandwidth, "bandwidth") > 0:
        raise InvalidInputError(
            f"bandwidth is {options.bandwidth!r}, but compiled code cannot offload yet; "
            'say {"bandwidth": 0}, or {"mode": "eager"}'
        )
    if device.type != "cpu":
        raise InvalidInputError(
            f'mode "inductor" has been tried on the CPU only, and the step is on {device}; say {{"mode": "eager"}}'
        )


class Kept(NamedTuple):
    """The runs of a step's graphs in one layout, the plan that keeps everything, and what its code holds beyond it."""

    visits: Sequence[Visit]
    plan: CompiledPlan
    document: Document
    fused: int


class Fitting:
    """The graphs of a step, and the code of their plans.

    The code of each plan is written, but not compiled, and run on tensors without data. What its convolutions hold
    within is planned as theirs; what it holds beside that beyond the plan's tensors, or less, is resident in the next
    plan. `orders` are those of the backwards.
    """

    def __init__(
        self,
        halves: Sequence[Halves],
        given: Sequence[Visit],
        held: Resident,
        options: Options,
        orders: Sequence[Sequence[int]] = ((0,),),
    ) -> None:
        check_compiled(options, halves[0].joint.device)
        self._halves, self._given, self._orders = halves, given, orders
        self._held, self._options = replace(held, random=0), options
        self._least_fused = -self._held.total  # what is resident cannot be less than nothing
        self._counted: dict[str, Counted] = {}
        self._last = (True, False) if any(one.prefers_channels_last for one in halves) else (False,)  # the faster first
        self._kept: dict[bool, Kept] = {}
        self._plain = [one.visit(visit) for one, visit in zip(halves, given, strict=True)]
        self._whole, _ = self._planned(self._plain, replace(options, budget="100%"), 0)

    @property
    def budget(self) -> int:
        """What was asked for, in bytes."""
        return self._bytes(self._options)

    @property
    def enough(self) -> int:
        """Memory for the code that keeps everything."""
        return min(self._peaks.values())

    @functools.cached_property
    def _peaks(self) -> dict[Style, int]:
        """The peak of the code that keeps everything, in each style."""
        styles = [Style(reuse, last) for last in self._last for reuse in (True, False)]
        return {style: self._process_peak(self._whole, style) for style in styles}

    @property
    def _least(self) -> Kept:
        """In the layout in which the code that keeps everything takes the least."""
        return self._kept_in(min(self._peaks, key=self._peaks.__getitem__).last)

    def fit(self, options: Options | None = None) -> Fitted:
        """A plan whose code keeps to the budget, or to another."""
        found = self.within(options or self._options)
        if isinstance(found, Fitted):
            return found
        raise too_small(self._whole.result.graph, self.budget, "its compiled code needs", found)

    def within(self, options: Options) -> Fitted | int:
        """A plan whose code keeps to another budget; without one, the bytes of the budget from which on there is one.

        Whether the search for one budget finds a plan is not monotone in it. So some plans are tried for all budgets.
        """
        budget = self._bytes(options)
        for last in self._last:
            found = self._within(replace(options, budget=budget), budget, last)
            if found is not None:
                return found
        for one in self._anyway:
            if one.peak <= budget:
                return self._for_another(one, budget)
        return min(one.peak for one in self._anyway)

    def counted(self, ways: Sequence[Way]) -> Counted:
        """What the code holds if its graphs run so."""
        key = repr([way.key for way in ways])
        if key not in self._counted:
            counts = [Count(self._halves, self._plain, ways) for _ in self._orders]
            peaks = [count.peak(order) for count, order in zip(counts, self._orders, strict=True)]
            self._counted[key] = Counted(max(peaks), counts[0].kept, counts[0].scratch)
        return self._counted[key]

    def _bytes(self, options: Options) -> int:
        found = parse_memory(options.budget, self._whole.result.graph, "the budget")
        if isinstance(options.budget, str) and options.budget.strip().endswith("%"):
            # Of a graph that holds what compiled code does.
            return found + self.enough - self._whole.result.peak_memory
        return found  # in the unit that was written

    @functools.cached_property
    def _anyway(self) -> list[Tried]:
        """Plans for all budgets, the fastest first: everything kept, and some from the least memory on."""
        kept = self._least
        top = kept.plan.result.peak_memory + kept.fused
        least = min(top, min_memory(kept.plan.result.graph) + kept.fused)
        found = [Tried(kept.plan, kept.document, peak, style) for style, peak in self._peaks.items()]
        for k in range(_ANYWAY):
            with contextlib.suppress(InfeasibleError):
                plan, document = self._planned_from(least + (top - least) * k // _ANYWAY)
                for style in [Style(False, last) for last in self._last]:
                    found.append(Tried(plan, document, self._process_peak(plan, style), style))
        return sorted(found, key=lambda one: one.plan.result.makespan)

    def _planned_from(self, budget: int) -> tuple[CompiledPlan, Document]:
        """A plan for a budget, or for the least that the planner needs."""
        kept = self._least
        try:
            return self._planned(kept.visits, replace(self._options, budget=budget), kept.fused)
        except InfeasibleError as error:
            return self._planned(kept.visits, replace(self._options, budget=error.min_memory), kept.fused)

    def _for_another(self, tried: Tried, budget: int) -> Fitted:
        """The same plan, beside what its code is known to hold."""
        plan = tried.plan
        fused = max(plan.resident.fused + tried.peak - plan.result.peak_memory, self._least_fused)
        held, options = replace(self._held, fused=fused), replace(self._options, budget=budget)
        found = plan_for_another(self._least.visits, self._orders, held, options, tried.document)
        return self._fitted(found or plan, tried.peak, tried.style)

    def _kept_in(self, last: bool) -> Kept:
        if last not in self._kept:
            style = Style(False, last)
            scratch = self._of_plan(self._whole, style).scratch
            visits = [one.visit(visit, scratch) for one, visit in zip(self._halves, self._given, strict=True)]
            plan, document = self._planned(visits, replace(self._options, budget="100%"), 0)
            fused = max(self._process_peak(self._whole, style) - plan.result.peak_memory, self._least_fused)
            self._kept[last] = Kept(visits, plan, document, fused)
        return self._kept[last]

    def _planned(self, visits: Sequence[Visit], options: Options, fused: int) -> tuple[CompiledPlan, Document]:
        held, orders = replace(self._held, fused=fused), self._orders
        return plan_and_document(visits, orders[0], held, options, others=orders[1:])

    def _ways(self, plan: CompiledPlan, style: Style) -> list[Way]:
        visits = len(self._given)
        return [Way(*steps_of(plan.result.schedule.steps, k, visits), *style) for k in range(visits)]

    def _of_plan(self, plan: CompiledPlan, style: Style) -> Counted:
        return self.counted(self._ways(plan, style))

    def _process_peak(self, plan: CompiledPlan, style: Style) -> int:
        return plan.process_bytes(self._of_plan(plan, style).peak)

    def _fitted(self, plan: CompiledPlan, peak: int, style: Style) -> Fitted:
        return Fitted(replace(plan, compiled=peak), self._ways(plan, style))

    def _quickest(self, plan: CompiledPlan, budget: int, last: bool) -> Fitted:
        """A plan whose code fits, and how it runs.

        Stock lets buffers take the place of freed ones, which is faster; it usually holds more, and so it is done where
        that fits.
        """
        styles = [Style(reuse, last) for reuse in (True, False)]
        peaks = ((self._process_peak(plan, style), style) for style in styles)
        return self._fitted(plan, *next(found for found in peaks if found[0] <= budget))

    def _within(self, options: Options, budget: int, last: bool) -> Fitted | None:
        tried = set[int]()
        best: CompiledPlan | None = None
        kept = self._kept_in(last)
        fused = kept.fused
        for _ in range(_ROUNDS):
            try:
                plan, _ = self._planned(kept.visits, options, fused)
            except InfeasibleError:
                break
            peak = self._process_peak(plan, Style(False, last))
            if peak <= budget and (best is None or plan.result.makespan < best.result.makespan):
                best = plan
            found = peak - (plan.result.peak_memory - fused)
            if peak <= budget and (peak >= _CLOSE * budget or not plan.result.recomputed or found == fused):
                break
            tried.add(fused)
            fused = max(found, self._least_fused)
            if fused in tried:  # plans that are alike, and not alike to the compiler
                if best is not None:
                    break
                fused = max(tried) + (peak - budget)
        return None if best is None else self._quickest(best, budget, last)
