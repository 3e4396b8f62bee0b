"""Updates that run on the host, beside the device: a thread steps the optimiser on copies that are there."""

from __future__ import annotations

import inspect
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memsched.errors import MemschedError
from memsched.torch.compiled.copies import Traffic

Given = tuple[torch.nn.Parameter, torch.Tensor, bool]
"""A parameter and its gradient as they are on the host, and whether that is to be laid out as the parameter is."""

Change = Callable[[torch.Tensor], None]


class Stepper:
    """Steps an optimiser for single parameters, with states and groups beside those of the optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # PyTorch's own wrappers would call hooks, which are for whole steps.
        self._step: Callable[[Any], Any] = inspect.unwrap(type(optimizer).step)
        self._own: Any = object.__new__(type(optimizer))
        self._own.__dict__.update(optimizer.__dict__)
        self._own.state = defaultdict(dict)

    def step(self, parameter: torch.Tensor, group: Mapping[str, Any], state: dict[str, Any] | None) -> Any:
        """Update a parameter by its gradient; returns its state, which the optimiser may make now."""
        own = self._own
        own.param_groups = [{**group, "params": [parameter]}]
        if state is not None:
            own.state[parameter] = state
        try:
            with torch.no_grad():
                self._step(own)
            return own.state.get(parameter)
        finally:
            own.param_groups = []
            own.state.clear()


@dataclass(slots=True)
class Sum:
    """A gradient that is added to another on the host, or copied if it is the first of several micro-batches."""

    total: torch.Tensor | None
    gradient: torch.Tensor | None
    first: bool
    error: BaseException | None = None

    def __call__(self) -> None:
        try:
            assert self.total is not None
            assert self.gradient is not None
            with torch.no_grad():
                (self.total.copy_ if self.first else self.total.add_)(self.gradient)
        except BaseException as error:  # told in the thread of the step
            self.error = error

    def drop(self) -> None:
        """All that it has of the step."""
        self.total = self.gradient = None


@dataclass(slots=True)
class HostUpdate:
    """The update of one parameter in one step, by copies on the host.

    Another thread calls it, and must not be the last to have any of this: whoever is told of dropped copies has a lock.
    """

    stepper: Stepper
    group: Mapping[str, Any]
    given: Given | None
    change: Change | None  # of the gradient, before the update
    state: dict[str, Any] | None
    done: bool = False
    error: BaseException | None = None

    def __call__(self) -> None:
        try:
            assert self.given is not None
            parameter, gradient, anew = self.given
            with torch.no_grad():
                parameter.grad = torch.empty_like(parameter).copy_(gradient) if anew else gradient
                if self.change is not None:
                    self.change(parameter.grad)
            self.state = self.stepper.step(parameter, self.group, self.state)
            self.done = True
        except BaseException as error:  # told in the thread of the step
            self.error = error

    def drop(self) -> None:
        """All that it has of the step."""
        if self.given is not None:
            self.given[0].grad = None
        self.given = self.change = None


class HostUpdates:
    """Of an optimiser, those of the present step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._stepper: Stepper | None = None
        self._present: dict[int, HostUpdate] = {}  # by place
        self._sums: list[Sum] = []

    def add(
        self, place: int, group: Mapping[str, Any], given: Given, change: Change, state: dict[str, Any] | None
    ) -> HostUpdate:
        """One more, for the host to carry out."""
        self._stepper = self._stepper or Stepper(self._optimizer)
        self._present[place] = made = HostUpdate(self._stepper, group, given, change, state)
        return made

    def add_up(self, one: Sum) -> None:
        """The host is to carry out this, too."""
        self._sums.append(one)

    def end(self, traffic: Traffic) -> tuple[dict[int, dict[str, Any]], BaseException | None]:
        """Wait for all; the states that they leave, by place, and an error, if one has failed."""
        if not self._present and not self._sums:
            return {}, None
        present, self._present = self._present, {}
        every: list[Sum | HostUpdate] = [*self._sums, *present.values()]
        self._sums = []
        errors: list[BaseException] = []
        try:
            traffic.finish("host")
        except MemschedError as error:  # of the driver: some have not begun
            errors.append(error)
        for one in every:
            one.drop()
        errors = [one.error for one in every if one.error is not None] + errors
        for found in errors:
            traceback.clear_frames(found.__traceback__)  # which have copies that nobody else may have
        made = {k: one.state for k, one in present.items() if one.done and one.state is not None}
        return made, next(iter(errors), None)
