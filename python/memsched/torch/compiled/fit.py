"""Plans for steps that Inductor compiles: what its code holds is counted, and planned again until it fits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memsched._core import Graph
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.problems.budget import parse_memory
from memsched.support.units import parse_bandwidth
from memsched.torch.compiled.as_graph import Resident, Visit, steps_of
from memsched.torch.compiled.fused import folded_calls
from memsched.torch.compiled.inductor import Half, lower_copies, stock_saved, with_sizes
from memsched.torch.compiled.joint import read_joint
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import CompiledPlan, plan_and_document, too_small
from memsched.torch.compiled.private import Boxed
from memsched.torch.compiled.rewrite import Rewritten, rewrite
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.meter import Meter
from memsched.torch.weightless import fake_mode_of

_ROUNDS = 6
_SHARES = (1, 1.02, 1.1, 1.3, 2, math.inf)  # of what may be enough: an error names the first that has a plan
_CLOSE = 0.98  # of the budget: a plan whose code holds so much of it is not improved


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan, and its compiled code."""

    plan: CompiledPlan  # with the peak of the code
    forward: Boxed
    backward: Boxed


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


def fit(visit: Visit, held: Resident, options: Options) -> Fitted:
    """Plan a joint graph, and compile it, so that the code keeps to the budget.

    The code of each plan is written, but not compiled, and run on tensors without data. What it holds beyond the plan's
    tensors, or less, is resident in the next plan. The joint graph went through `inductor.prepare`.
    """
    check_compiled(options, visit.joint.device)
    fitting = _Fitting(visit)

    def planned(options: Options, fused: int) -> CompiledPlan:
        return plan_and_document([fitting.visit], [0], replace(held, random=0, fused=fused), options)[0]

    whole = planned(replace(options, budget="100%"), 0)
    peaks = [whole.process_bytes(fitting.counted(whole, reuse)) for reuse in (True, False)]
    least_fused = -replace(held, random=0).total  # what is resident cannot be less than nothing
    fused = max(min(peaks) - whole.result.peak_memory, least_fused)

    def within(options: Options) -> tuple[CompiledPlan, bool] | int:
        found = _within(fitting, planned, options, fused, least_fused)
        if isinstance(found, int):  # code that holds even less than what is resident: no such plan is looked for
            assert isinstance(whole.result.problem, Graph)
            budget = parse_memory(options.budget, whole.result.problem, "the budget")
            peak, reuse = fitting.peak(whole, budget)
            return (replace(whole, compiled=peak), reuse) if peak <= budget else found
        return found

    found = within(options)
    if isinstance(found, tuple):
        return fitting.compiled(*found)
    for share in _SHARES:
        enough = int(min(found * share, *peaks))
        if isinstance(within(replace(options, budget=enough)), tuple):
            break
    graph = whole.result.problem
    assert isinstance(graph, Graph)
    raise too_small(graph, parse_memory(options.budget, graph, "the budget"), "its compiled code needs", enough)


def _within(
    fitting: _Fitting,
    planned: Callable[[Options, int], CompiledPlan],
    options: Options,
    fused: int,
    least_fused: int,
) -> tuple[CompiledPlan, bool] | int:
    """A plan whose code keeps to its budget, and whether that lets buffers take the place of freed ones.

    `fused` are the bytes that the code seems to hold beside the plan's tensors. Without a plan: a number of bytes that
    may be enough.
    """
    tried = set[int]()
    best: tuple[CompiledPlan, bool] | None = None
    least = 0
    for _ in range(_ROUNDS):
        try:
            plan = planned(options, fused)
        except InfeasibleError as error:
            least = least or error.min_memory
            break
        budget = plan.result.schedule.budget
        options = replace(options, budget=budget)  # a percentage is of the first
        peak, reuse = fitting.peak(plan, budget)
        better = best is None or plan.result.makespan < best[0].result.makespan
        if peak <= budget and better:
            best = replace(plan, compiled=peak), reuse
        found = peak - (plan.result.peak_memory - fused)
        if peak <= budget and (peak >= _CLOSE * budget or not plan.result.recomputed or found == fused):
            break
        least = min(least, peak) if least else peak
        tried.add(fused)
        fused = max(found, least_fused)
        if fused in tried:  # plans that are alike, and not alike to the compiler
            if best is not None:
                break
            fused = max(tried) + (peak - budget)
    return least if best is None else best


class _Fitting:
    """A joint graph for one set of sizes, and the code of its plans."""

    def __init__(self, given: Visit) -> None:
        joint, sizes = given.joint, given.sizes
        self._results, self._values, self._copies = len(joint.results), list(sizes.values), given.copies
        self._beside = given.beside
        static = sorted(k - joint.tokens for k in given.static)
        sized = with_sizes(joint.module, sizes.number)
        saved = stock_saved(sized, self._results, static)
        self._joint = read_joint(sized, self._results, folded_calls(sized, saved))
        self.visit = Visit(self._joint, Sizes(self._joint, ()), beside=given.beside)
        self._counted: dict[Any, int] = {}

    def counted(self, plan: CompiledPlan, reuse: bool) -> int:
        """The most bytes that the code of a plan allocates."""
        key = repr(plan.result.schedule.steps), reuse
        if key not in self._counted:
            made = self._rewritten(plan)
            forward = self._forward(made, reuse)
            first = forward.dry()  # it knows the strides of what it saves only now
            self._counted[key] = self._count(first, self._backward(made, forward, reuse).dry())
        return self._counted[key]

    def peak(self, plan: CompiledPlan, budget: int) -> tuple[int, bool]:
        """The peak of the whole process, and whether the code lets buffers take the place of freed ones.

        Stock does, which is faster; it usually holds more, and so it is done where that fits.
        """
        without = plan.process_bytes(self.counted(plan, False))
        if without > budget / _CLOSE:
            return without, False
        with_it = plan.process_bytes(self.counted(plan, True))
        return (with_it, True) if with_it <= max(budget, without) else (without, False)

    def compiled(self, plan: CompiledPlan, reuse: bool) -> Fitted:
        """The code of a plan."""
        made = self._rewritten(plan)
        half = self._forward(made, reuse)
        forward = half.compiled()
        backward = self._backward(made, half, reuse).compiled()
        sizes = self._values

        def first(args: list[Any]) -> Sequence[Any]:
            return [*forward(args), *sizes]

        def second(args: list[Any]) -> Sequence[Any]:
            del args[: len(sizes)]
            return backward(args)

        return Fitted(plan, first, second)

    def _rewritten(self, plan: CompiledPlan) -> Rewritten:
        made = rewrite(self._joint, *steps_of(plan.result.schedule.steps, 0, 1))
        lower_copies(made.forward.graph)
        return made

    def _forward(self, made: Rewritten, reuse: bool) -> Half:
        return Half(made.forward, self._results, backward=False, reuse=reuse)

    def _backward(self, made: Rewritten, forward: Half, reuse: bool) -> Half:
        saved = forward.strides[self._results :] if forward.strides else ()
        return Half(made.backward, len(self._joint.gradients), strides=saved, backward=True, reuse=reuse)

    def _count(self, forward: Boxed, backward: Boxed) -> int:
        given = [node.meta["val"] for node in self._joint.primals]
        arriving = [node.meta["val"] for node in self._joint.tangents]

        with torch.no_grad(), fake_mode_of((*given, *arriving)) or contextlib.nullcontext(), Meter() as meter:
            out = list(forward(list(given)))
            args = [*out[self._results :], *(torch.empty_like(one) for one in arriving)]
            del out[self._results :]  # the results stay until the end
            meter.count((), self._beside)
            gradients = backward(args)
            copied = meter.live + self._copies
        del gradients
        return max(meter.peak, copied)
