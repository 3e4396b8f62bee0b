"""Planned steps beside plain ones, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from memsched.errors import InvalidInputError, MemschedError
from memsched.support.formats import Bytes, exact_bytes, unit_written
from memsched.torch.compiled import copies
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.plan import described
from memsched.torch.compiled.private import active_fake_mode
from memsched.torch.compiled.special_groups import Unplanned
from memsched.torch.compiled.unit import counted
from memsched.torch.lanes import trial_lanes
from memsched.torch.trial import Step, distance, first_difference

_MOST = 0.5  # of its norm: another order changes a sum of bfloat16 numbers that cancel out by 0.14


@dataclass(frozen=True, slots=True)
class Verified:
    """What a planned step showed when it ran.

    Attributes
    ----------
    peak_memory : int
        Bytes of the whole process at the peak, counted operation by operation.
    reordered : str or None
        The first tensor whose bits are not those of plain PyTorch, since AOTAutograd computes it in another order, or
        results are laid out as it traced them. It has the same bits where everything is kept.
    difference : float
        By how much outputs and gradients differ at most, as a share of their norms: 0 where none does.
    without_loss : bool
        Whether the plan counts a loss that was not run, so that the peak may be lower than the plan's.
    """

    peak_memory: int
    reordered: str | None
    difference: float = 0.0
    without_loss: bool = False

    def __str__(self) -> str:
        same = "the bits of plain PyTorch"
        if self.reordered is not None:
            same = f"{same} but for {self.reordered}, by {self.difference:.1e} of its norm, as without a plan"
        less = ", without the loss that the plan counts" if self.without_loss else ""
        return f"{same}; {exact_bytes(self.peak_memory, unit_written(self.peak_memory))} at the peak{less}"

    def joined(self, other: Verified) -> Verified:
        """With another step that takes turns with this one."""
        peak, difference = max(self.peak_memory, other.peak_memory), max(self.difference, other.difference)
        return replace(self, peak_memory=peak, reordered=self.reordered or other.reordered, difference=difference)


def verified(
    trial: Callable[[Callable[..., Any]], Step],
    plain: Callable[..., Any],
    planned: Callable[[Group], Callable[..., Any]],
    *,
    start: Callable[[], contextlib.AbstractContextManager[object]],
    group: Callable[[], Group],
    plan: CompiledPlan,
    device: torch.device,
    without_loss: bool = False,
) -> Verified:
    """Compare a planned step with a plain one: an error tells of a difference, or of what the plan does not hold.

    `trial` runs a step, and gives what it computed. The step is that of plain PyTorch, or compiled so that it follows
    the plan of a group. `start` makes a context that each run begins in, and that leaves no trace; `group` makes a
    group that knows the plan.
    """

    if active_fake_mode() is not None:
        raise InvalidInputError("to verify is to run real steps, which a FakeTensorMode does not: verify outside of it")

    def tried(step: Callable[..., Any]) -> Step:
        with start():
            return trial(step).on_host()

    expected = tried(plain)
    if device.type == "cuda":  # some of its kernels add in any order
        expected = expected.without_noise(tried(plain))
    peak, reordered, difference, where = 0, None, 0.0, ""
    for name, lanes in trial_lanes(device).items():
        one = group()
        one.forget()
        with copies.using(device, lanes):
            step = planned(one)
            for _ in range(plan.visits):  # the first step of several graphs shows which they are
                with counted(device) as meter:
                    found = tried(step)
        ran = one.plans()[-1:]
        if [_followed(other) for other in ran] != [_followed(plan)]:
            raise MemschedError(plan.is_not_of(ran[0].given if ran else ""))
        peak = max(peak, plan.process_bytes(meter.peak))
        different = first_difference(expected, found)
        if different is not None:
            if first_difference(tried(planned(Unplanned(one.options))), found) is not None:
                raise MemschedError(
                    f"the planned step changes the {different} (copies {name}): either the forward depends on what is "
                    "no tensor, such as Python's random, or this is a bug to report"
                )
            difference, where = max((difference, where), distance(expected, found))
            if difference > _MOST:
                raise MemschedError(
                    f"the captured step changes the {where} by {difference:.0%}, also where nothing is planned, and "
                    'that is no other order of sums: report it to PyTorch if torch.compile(model, backend="aot_eager") '
                    "does so, too, else here"
                )
            reordered = different
    if peak > plan.result.schedule.budget:
        unit = unit_of_budget(plan)
        used, budget = (exact_bytes(size, unit) for size in (peak, plan.result.schedule.budget))
        raise MemschedError(
            f"the step used {used} of a budget of {budget}, as an operation allocates more "
            "than PyTorch tells of it; once applied, steps after the first are planned beside that, or refused"
        )
    return Verified(Bytes(peak, unit_of_budget(plan)), reordered, difference, without_loss)


def unit_of_budget(plan: CompiledPlan) -> str:
    """In which the budget of a plan was written, for other bytes of it."""
    return unit_written(plan.result.device).replace("%", "")


def _followed(plan: CompiledPlan) -> tuple[Any, dict[str, int]]:
    """The steps of a plan, and the bytes of its tensors, since steps for another batch may be the same."""
    return described(plan.result)["steps"], {one["name"]: one["size"] for one in plan.result.graph.tensors}
