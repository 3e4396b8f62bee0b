"""Groups whose graphs follow no plan, or one that was made before their first step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from memsched._core import Graph
from memsched.support.documents import Document
from memsched.torch.compiled.as_graph import Visit, no_costs, prefix, step_graph
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.held import Call, Due, Path, held_in_step, order_of, visits_of
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.plan import key_of_step
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import LossBytes
from memsched.torch.compiled.unit import Unit
from memsched.torch.compiled.updates import Updates
from memsched.torch.compiled.witness import Witness
from memsched.torch.errors import CaptureError

_LOADED_LATER = 16 * 2**20  # bytes of code that a CUDA device has loaded after a step, and not after a look at it

Form = tuple[list[tuple[str, int]], list[tuple[Any, ...]]]


class Unplanned(Group):
    """A group whose graphs follow no plan: they keep everything. What runs in a step is noted.

    `aside` makes a context in which tensors have data. A `witness` is shown what each call takes and returns.
    """

    def __init__(
        self,
        options: Options,
        *,
        aside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
        witness: Witness | None = None,
        updates: Updates | None = None,
    ) -> None:
        super().__init__(options, updates=updates)
        self._aside, self._witness = aside, witness
        self._given: list[Any] = []  # of the present call, for the witness

    def enter(self, unit: Unit, args: Sequence[Any]) -> Due:
        self._given = list(args) if self._witness is not None else []
        return super().enter(unit, args)

    def left(self, unit: Unit, found: Sequence[Any]) -> None:
        if self._witness is not None:
            self._witness.called(self._given, found[: len(unit.joint.results)])
            self._given = []
        super().left(unit, found)

    def seen(self) -> tuple[list[Visit], list[int], Resident]:
        """The graphs of the present step by their forwards, the order of their backwards, and what is resident."""
        units = [unit for call in self._calls if (unit := call.unit()) is not None]
        if not units:
            raise CaptureError("PyTorch captures nothing of the step")
        visits = visits_of(units, self._calls, self._loss)
        held = held_in_step(self._calls, visits, self.options)
        later = _LOADED_LATER if visits[0].joint.device.type == "cuda" else 0
        return visits, order_of(self._calls, self._returns), replace(held, others=held.others + later)

    def _alone(self, unit: Unit, call: Call, options: Options) -> int:
        return unit.as_traced()

    def _end_step(self) -> None:
        self._begin_step()

    def marker(self, due: Due) -> torch.Tensor:
        with self._aside():
            return super().marker(due)


class Expecting(Group):
    """A group that expects the step for which a plan was made: also a first step of several graphs follows it.

    Other steps are planned as in any group. The document is how the plan is kept, the device what the step runs on.
    """

    def __init__(
        self, options: Options, plan: CompiledPlan, document: Document, device: torch.device, *, loss: LossBytes
    ) -> None:
        super().__init__(options, loss=loss, known={key_of_step(plan.result.graph, options, device): document})
        self._expected, self.allowed = plan, plan.result.schedule.budget
        self._followed: set[Path] = {()}

    def _alone(self, unit: Unit, call: Call, options: Options) -> int:
        k, visits, key = len(self._calls), self._expected.visits, call.key
        if k < visits > 1 and not key.gradients and self._place.path in self._followed:
            (visit,), expected = visits_of([unit], [call], self._loss), self._expected
            within = held_in_step([*self._calls, call], [visit], options).total <= expected.resident.total
            if within and form_of(visit) == form_in(self._expected.result.graph, prefix(k, visits)):
                self._followed.add((*self._place.path, key))
                return unit.add(self._expected, k, visits, visit.sizes, visit.beside)
        return super()._alone(unit, call, options)


def form_of(visit: Visit) -> Form:
    """The same of a visit by itself."""
    return form_in(step_graph([visit], [0], [no_costs(visit)], resident=0), "")


def form_in(graph: Graph, own: str) -> Form:
    """Of one visit, whose names begin with `own`: its tensors with their bytes, and what its operations do to them."""

    def named(names: Iterable[object]) -> list[str]:
        return [str(name)[len(own) :] for name in names if str(name).startswith(own)]

    tensors = [(name[0], int(one["size"])) for one in graph.tensors if (name := named([one["name"]]))]
    ops = [(*name, named(one["reads"]), named(one["writes"])) for one in graph.ops if (name := named([one["name"]]))]
    return tensors, ops
