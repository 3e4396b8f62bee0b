"""Training steps that follow a schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched._core import Device, Graph, Schedule
from memsched.errors import InvalidInputError, MemschedError, ScheduleError
from memsched.problems.family import GraphFamily
from memsched.torch.capture import Autocast
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.gradients import Gradients
from memsched.torch.graph_step.inputs import own_inputs
from memsched.torch.graph_step.interpret import Pass
from memsched.torch.graph_step.resolve import resolve
from memsched.torch.lanes import Lanes
from memsched.torch.leaves import Leaf, distinct
from memsched.torch.nesting import nesting
from memsched.torch.run import Observer
from memsched.torch.script import Script
from memsched.validation.plan import validate


class StepRunner:
    """Runs steps of a captured model as a schedule says. A schedule that cannot run is refused here.

    Parameters
    ----------
    captured : CapturedStep
    problem : Graph or GraphFamily
        What was planned: captured.graph or captured.family().
    schedule : Schedule
    device : Device
        Its memory and host memory are not exceeded.
    lanes : Lanes

    Attributes
    ----------
    observe : callable
        Asked at each pass for an observer, or None.
    passed : Pass or None
        The pass that is under way.

    Raises
    ------
    ScheduleError
        The schedule is for another graph, or cannot run.
    """

    def __init__(
        self,
        captured: CapturedStep,
        problem: Graph | GraphFamily,
        schedule: Schedule,
        device: Device,
        lanes: Lanes,
    ) -> None:
        name = captured.graph.name
        if schedule.graph != name:
            raise ScheduleError(f"the schedule is for the graph {schedule.graph!r} and the step's is {name!r}; plan it")
        validate(problem, schedule, device)
        self.captured, self.schedule, self.lanes = captured, schedule, lanes
        self.observe: Callable[[], Observer | None] = lambda: None
        self.passed: Pass | None = None
        self.scripts: dict[int, Script] = {}
        for batch, _ in schedule.rounds:
            program, graph = captured.program_at(batch), captured.graph_at(batch)
            self.scripts[batch] = resolve(program, graph, schedule)
        self._host = lanes.host_memory(max(script.host_bytes for script in self.scripts.values()))

    def step(self, *args: Any) -> torch.Tensor:
        """One training step: the loss. Gradients are added to those of the parameters.

        Raises
        ------
        InvalidInputError
            The inputs are not like those that were captured.
        MemschedError
            The model has changed since.
        """
        given = list(args)
        del args
        return self.take(given)

    def take(self, args: list[Any]) -> torch.Tensor:
        """The same with a list of inputs, which is emptied, so that an input that the plan drops is gone."""
        self._check_model()
        leaves = self._check_inputs(args)
        args.clear()
        model = self.captured.model
        gradients = Gradients({name: p for name, p in model.named_parameters() if p.requires_grad})
        total: torch.Tensor | None = None
        start = 0
        recording = torch.is_grad_enabled()
        try:
            with torch.autocast(self.captured.program.device.type, enabled=False):  # casts are operations already
                for batch, times in self.schedule.rounds:
                    for _ in range(times):
                        loss = self._pass(self._part(leaves, start, batch), batch, gradients)
                        total = loss if total is None else total + loss
                        start += batch
        finally:
            torch.set_grad_enabled(recording)  # an interrupt can come where `with` has not yet put it back
        gradients.finish()
        assert total is not None
        return total

    def _part(self, leaves: list[torch.Tensor], start: int, batch: int) -> list[torch.Tensor]:
        """The samples of one pass. Those of the only pass are taken over, and held by nobody else here."""
        if self.captured.rounds:
            return own_inputs([leaf.narrow(0, start, batch) for leaf in leaves])
        owned = own_inputs(leaves)
        leaves.clear()
        return owned

    def _pass(self, inputs: list[torch.Tensor], batch: int, gradients: Gradients) -> torch.Tensor:
        model = self.captured.model
        state = [*model.parameters(), *model.buffers()]
        one = self.passed = Pass(
            self.captured.program_at(batch),
            self.scripts[batch],
            state,
            inputs,
            gradients=gradients,
            lanes=self.lanes,
            host=self._host,
            observer=self.observe(),
        )
        try:
            one.run()
        finally:
            self.passed = None
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in one.buffers:
                    buffer.copy_(one.buffers[name])
        assert one.loss is not None
        return one.loss

    def _check_model(self) -> None:
        program = self.captured.program
        changed = program.premises.changed()
        if changed is not None:
            raise MemschedError(f"the model has changed since it was planned: {changed}; plan it again")
        for name, parameter in self.captured.model.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                raise MemschedError(
                    f"parameter {name!r} has hooks, which a planned step does not run; remove them, or use "
                    "memsched.torch.plan"
                )
        ambient = Autocast.ambient(program.device.type)
        if ambient != program.autocast:
            raise MemschedError(
                f"the step was planned with {program.autocast} and runs with {ambient}; plan it under the autocast "
                "that it trains with"
            )

    def _check_inputs(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the inputs, which must be like those of the capture."""
        leaves, spec = pytree.tree_flatten(tuple(args))
        wanted = self.captured.leaves
        if spec != self.captured.spec:
            raise InvalidInputError(
                f"the step was planned for inputs nested as {nesting(self.captured.spec)} and got {nesting(spec)}; "
                "pass them alike"
            )
        for k, (leaf, expected) in enumerate(zip(leaves, wanted, strict=True)):
            found = Leaf.of(leaf)
            if found != expected:
                layout_only = dataclasses.replace(found, strides=expected.strides) == expected
                remedy = "lay it out alike" if layout_only else "plan for this input too, or drop a smaller last batch"
                raise InvalidInputError(f"input {k} is {found}, and the plan is for {expected}; {remedy}")
        tensors, which = distinct(leaves)
        if which != self.captured.which:
            raise InvalidInputError(
                "some inputs are one tensor here and were several when the step was planned, or the other way; pass "
                "them alike"
            )
        return tensors
