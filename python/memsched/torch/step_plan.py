"""A whole step at a time: forward and loss are captured together, and the batch may be split."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError, shortened
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem
from memsched.result import Result
from memsched.support.documents import Document
from memsched.support.interrupt import Interrupts
from memsched.torch.batches import narrowed, parts_in
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.group import Group
from memsched.torch.compiled.look import Loss, check_model, device_of, forward_of, then
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.parameters import Parameters
from memsched.torch.compiled.plain_updates import after_step, plain_step
from memsched.torch.compiled.private import compiled_apart, without_logs
from memsched.torch.compiled.scaling import Scaling
from memsched.torch.compiled.update_checks import check_parameters
from memsched.torch.compiled.update_mark import states_called
from memsched.torch.compiled.updates import Updates
from memsched.torch.errors import check_arguments, told, without_tensors
from memsched.torch.module_state import backward_aside
from memsched.torch.nests import tensors_of
from memsched.torch.report import NO_OPTIMIZER, ShowsResult, describe
from memsched.torch.step_report import told_of_updates, told_of_waiting
from memsched.torch.trial import Step, random_state, untouched
from memsched.torch.verify import Verified, verified

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""What a model is called with."""


def given_to(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Given:
    """What a model is called with; named arguments in an order that does not depend on how they are written."""
    check_arguments(model, args, kwargs)
    if any(isinstance(one, torch.nn.Module) for one in args):
        raise InvalidInputError("a module is among the inputs; a planned step knows its model: give its inputs alone")
    return tuple(args), dict(sorted((kwargs or {}).items()))


class StepPlan(ShowsResult):
    """How one training step of a model, with its loss, fits a budget. Made by `memsched.torch.plan_step`.

    Attributes
    ----------
    plan : CompiledPlan
        Of the step, or of one of its rounds.
    result : Result
        The plan of the step's graph, or of a family of graphs, simulated. Budget, peak and resident bytes are those of
        the whole process.
    waiting : StepPlan or None
        Of a micro-batch whose gradients wait for the step, with `accumulate=True`.
    """

    waiting: StepPlan | None = None

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Loss,
        given: Given,
        options: Options,
        result: Result,
        plan: CompiledPlan,
        known: dict[str, Document],
        updates: Updates | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        self.result, self.plan = result, plan
        self._scaling = scaling
        self._model, self._loss, self._options, self._known = model, loss, options, known
        self._device, self._rounds = device_of(model), isinstance(result.problem, GraphFamily)
        self._like = _described(given)
        self._updates = updates
        group = Group(options, known=known, updates=updates)
        self._step = self._compiled(group)
        # What PyTorch compiled lives on, until the process ends, and the optimiser need not.
        weakref.finalize(self, setattr, group, "updates", None).atexit = False

    def __repr__(self) -> str:
        return f"StepPlan({self.result!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InvalidInputError(
            "a StepPlan runs the model that it was made for, so it can neither be copied nor pickled; copy the model, "
            "and call memsched.torch.plan_step for the copy"
        )

    def __getattr__(self, name: str) -> Any:
        if name in ("apply", "at", "export", "load", "save"):
            raise AttributeError(
                f"a StepPlan has no {name!r}: it is a step of this process; memsched.torch.plan makes plans that are "
                "applied, saved and exported, and plan_step another one"
            )
        raise AttributeError(f"'StepPlan' object has no attribute {name!r}")

    def wait_by(self, waiting: StepPlan, on_host: Mapping[int, int]) -> None:
        """Steps whose gradients wait follow a plan of their own, which finds the states at these places on the host."""
        assert waiting._updates is not None
        waiting._updates.lasting.states_at = {place: "host" if place in on_host else "device" for place in self.states}
        self.waiting = waiting

    @property
    def states(self) -> dict[int, int]:
        """Bytes of the optimiser's states that may travel, by the place of their parameter."""
        sizes = {one["name"]: one["size"] for one in self.result.graph.tensors}
        return {
            place: sizes[states_called(place)] for place in (self._updates.lasting.planned if self._updates else ())
        }

    @property
    def on_host(self) -> dict[int, int]:
        """Of these, those that are on the host alone between steps."""
        border = self.result.schedule.border
        return {place: size for place, size in self.states.items() if border.get(states_called(place)) == "host"}

    @property
    def problem(self) -> Problem:
        """The step as a graph, or as a family of graphs."""
        return self.result.problem

    @property
    def peak_memory(self) -> int:
        """Of the whole process, in bytes."""
        return self.result.peak_memory

    @property
    def norm(self) -> torch.Tensor | None:
        """The norm of all gradients of the last step before `max_norm` clipped them: one number on the device."""
        norm = None if self._updates is None else self._updates.norm
        return None if norm is None else norm.clone()

    def report(self) -> str:
        """What the plan does and what it costs, as text."""
        updates: list[str] = []
        waiting = self.waiting
        if self._updates is not None:
            updates += told_of_updates(self._updates, sum(one.requires_grad for one in self._model.parameters()))
        if waiting is not None and waiting._updates is not None:
            updates += told_of_waiting(self.result, waiting.result, len(waiting._updates.hosted))
        told = [f"\nnot counted\n  {NO_OPTIMIZER}"] if self._options.optimizer is None else []
        return "\n".join([describe(replace(self.plan, result=self.result)), *updates, *told])

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One training step as planned: forward, loss and backward, and with `update=True` the updates.

        Gradients are added to `.grad` of the parameters, as `backward()` does, and buffers such as running statistics
        are updated. With `update=True` the optimiser has stepped when this returns, and its parameters have no `.grad`.

        Parameters
        ----------
        *args, **kwargs
            Inputs like those that were planned for.

        Returns
        -------
        torch.Tensor
            The loss, without a history. In rounds it is the sum of the parts' losses, each weighted with its share of
            the batch.

        Raises
        ------
        InvalidInputError
            The inputs have other shapes, types or layouts; with `update=True` also if a parameter has a gradient from
            before, or a hook for it.
        """
        return self._take(self._step, given_to(self._model, args, kwargs), updates=self._updates)

    def accumulate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch whose gradients wait in `.grad`, where the next `step` adds to them; nothing is updated.

        Where gradients may travel, `.grad` of one that is on the host is NaN, and PyTorch refuses to write to it; after
        `bring_back` all are there. `zero_grad()` drops them. Takes, returns and raises what `step` does, and asks for a
        plan with `accumulate=True`.
        """
        if self.waiting is None:
            raise InvalidInputError("the step is planned without accumulate=True; plan it with update=True and that")
        return self.waiting.step(*args, **kwargs)

    def bring_back(self) -> None:
        """Bring states of the optimiser, parameters, and gradients that wait to the device, as after a plain step."""
        if self._updates is not None:
            with torch.inference_mode(False):
                self._updates.lasting.home()

    def verify(self, *args: Any, **kwargs: Any) -> Verified:
        """Compare a planned step with plain autograd: loss, gradients, buffers and random numbers, bit for bit.

        In rounds the plain step accumulates the gradients of the same parts. With `update=True`, parameters and states
        are compared after a step of a copy of the optimiser. Else as `TorchPlan.verify`.

        Raises
        ------
        MemschedError
            Naming the first tensor that differs, or the bytes that exceed the budget.
        """
        model, updates = self._model, self._updates
        given = given_to(model, args, kwargs)

        def trial(step: Callable[..., Any]) -> Step:
            updates = step.updates if isinstance(step, _Updating) else None
            learning = dict(model.named_parameters())
            learning |= {f"input {k}": one for k, one in enumerate(tensors_of(given)) if one.requires_grad}
            value = self._take(step, given, own=set(map(id, learning.values())), updates=updates)
            updated: dict[str, torch.Tensor] = {}
            if self._updates is not None and self._updates.lasting.awaited:
                self._updates.lasting.parameters.home()
                self._updates.lasting.waiting.home()
            if self._updates is not None and self._updates.how.updates:
                if updates is None:
                    updates = self._updates.copy()
                    plain_step(updates, model)
                updated = after_step(updates, model)
                learning = {name: one for name, one in learning.items() if id(one) not in self._updates.trained}
            gradients = {name: one.grad for name, one in learning.items()}
            for one in (*model.parameters(), *learning.values()):
                one.grad = None
            return Step(
                outputs=[value],
                gradients=gradients,
                buffers={name: one.detach().clone() for name, one in model.named_buffers()},
                random=random_state(self._device),
                updated=updated,
            )

        groups: list[Group] = []

        def group() -> Group:
            groups.append(Group(self._options, known=self._known, updates=updates and updates.copy()))
            return groups[-1]

        try:
            found = self._verified(model, given, trial, group)
            return found if self.waiting is None else found.joined(self.waiting.verify(*args, **kwargs))
        finally:
            for one in groups:  # what was compiled for them lives on, and their states need not
                one.updates = None

    def _verified(
        self, model: torch.nn.Module, given: Given, trial: Callable[..., Any], group: Callable[[], Group]
    ) -> Verified:
        loss = self._loss
        # What parts add to each other's gradients is counted as they run.
        counting = replace(self.plan, resident=replace(self.plan.resident, gradients=0))
        with told(model, *given, loss=loss):
            return verified(
                trial,
                then(model._call_impl, loss),
                self._compiled,
                start=self._start(given),
                group=group,
                plan=counting if self._rounds else self.plan,
                device=self._device,
            )

    def _start(self, given: Given) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """What leaves no trace of a step, before which gradients wait if it adds to them."""

        @contextlib.contextmanager
        def start() -> Iterator[None]:
            updates = self._updates
            parameters = updates.lasting.parameters if updates is not None else Parameters({})
            parameters.home()
            if updates is not None:
                updates.lasting.waiting.home()
            with untouched(self._model, given, self._loss):
                parameters.renew()
                adds = updates is not None and updates.how.adds
                for one in filter(updates.are_of, self._model.parameters()) if updates is not None and adds else ():
                    one.grad = torch.randn_like(one)
                try:
                    yield
                finally:
                    parameters.home()  # else its copy on the host would outlive what is put back

        return start

    def _compiled(self, group: Group) -> Callable[..., Any]:
        step = then(forward_of(self._model), self._loss)
        compiled = compiled_apart(step, backend_of(group), dynamic=False)
        return compiled if group.updates is None else _Updating(compiled, group.updates)

    def _take(
        self,
        step: Callable[..., Any],
        given: Given,
        own: set[int] | None = None,
        updates: Updates | None = None,
    ) -> torch.Tensor:
        """`own`: what gets gradients; None: all does. `updates` are a part of the step."""
        if (like := _described(given)) != self._like:
            now, planned = (", ".join(map(shortened, one)) or "none" for one in (like, self._like))
            raise InvalidInputError(
                f"the inputs are {now}, and the plan is for {planned}; give such, or plan for others"
            )
        check_model(self._model)
        if not torch.is_grad_enabled():
            raise InvalidInputError("a training step is taken under no_grad or inference_mode; call it outside")
        if updates is not None:
            check_parameters(self._model, updates)
            with Interrupts() as interrupts:
                try:
                    with interrupts.allowed():
                        updates.begin()
                        found = self._run(step, given, own)
                        updates.ended(self._model)
                        return found
                except BaseException as error:
                    without_tensors(error)
                    raise
                finally:
                    updates.rest()
        return self._run(step, given, own)

    def _run(self, step: Callable[..., Any], given: Given, own: set[int] | None) -> torch.Tensor:
        rounds = self.result.schedule.rounds
        whole = sum(batch * times for batch, times in rounds)
        total: torch.Tensor | None = None
        for start, batch in parts_in(rounds):
            args, kwargs = narrowed(given, start, batch) if self._rounds else given
            with without_logs():
                value = step(*args, **kwargs)
            del args, kwargs
            if self._rounds:
                value = value * (batch / whole)
            end = value if self._scaling is None else self._scaling.scaled(value)
            if own is None:
                end.backward()
            else:
                backward_aside([end], None, own=lambda leaf: id(leaf) in own)
            del end
            total = value.detach() if total is None else total + value.detach()
            del value
        assert total is not None
        return total


@dataclass(frozen=True, slots=True)
class _Updating:
    """A compiled step with its updates."""

    compiled: Callable[..., Any]
    updates: Updates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


def _described(given: Given) -> list[str]:
    """Each input in words, after its name if it has one."""
    args, kwargs = given
    found = list(map(_in_words, pytree.tree_leaves(args)))
    return [
        *found,
        *(f"{name}: {_in_words(one)}" for name, value in kwargs.items() for one in pytree.tree_leaves(value)),
    ]


def _in_words(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return f"a {type(leaf).__name__}, which is no tensor" if hasattr(leaf, "__array__") else repr(leaf)
    return f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)} with strides {leaf.stride()}"
