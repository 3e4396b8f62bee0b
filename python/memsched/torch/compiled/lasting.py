"""What lasts from step to step: parameters, states of the optimiser, and gradients that wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from memsched._core import Schedule
from memsched.torch.compiled.parameters import Parameters, bring_back
from memsched.torch.compiled.states import States, states_in
from memsched.torch.compiled.update_mark import gradient_called, states_called
from memsched.torch.compiled.waiting import WaitingGradients
from memsched.torch.optimizer_state import trained_by


class Lasting:
    """Of a step that updates its parameters by an optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Parameters) -> None:
        self.parameters = parameters
        self.states, self.waiting = States(optimizer), WaitingGradients(trained_by(optimizer))
        self.planned: set[int] = set()  # places of parameters whose states are tensors of the plan
        self.resident: set[int] = set()  # of those with others, which do not travel
        self.awaited: set[int] = set()  # and of those whose gradients from before are
        self.states_at: Mapping[int, str] | None = (
            None  # where states are between steps, by place; None: as a plan says
        )
        self.parameters_at: Mapping[str, str] = {}  # where parameters are, by the names of the plan

    def like(self, other: Lasting) -> None:
        """Be as in the plan of another step."""
        self.planned, self.resident, self.awaited = other.planned, other.resident, other.awaited
        self.states_at, self.parameters_at = other.states_at, other.parameters_at

    @property
    def settled(self) -> bool:
        """Whether all states are there: the first step makes them."""
        made = all(map(self.states.of, self.resident))
        return made and all(states_in(self.states.of(place)) for place in self.planned)

    @property
    def some_travel(self) -> bool:
        """Whether anything may be on the host."""
        return self.states.some_have_left or bool(self.parameters.named)

    def on_device(self) -> Iterator[torch.Tensor]:
        """What of the plan has memory there."""
        yield from self.parameters.on_device()
        for place in self.planned:
            yield from self.states.on_device(place)
        for place in self.awaited:
            yield from self.waiting.on_device(place)

    # Between two steps.

    def begin(self) -> None:
        """Bring parameters and gradients to where they are before a step; states are where its plan has them."""
        self._bring(self.parameters_at, None)

    def follow(self, schedule: Schedule) -> None:
        """Bring all to where it is between two steps of a schedule, which the present step follows."""
        self.parameters_at, where = schedule.border, self.states_at
        if where is None:
            where = {place: schedule.border.get(states_called(place), "device") for place in self.planned}
        self._bring(schedule.border, where)

    def _bring(self, border: Mapping[str, str], states: Mapping[int, str] | None) -> None:
        """What leaves makes room for what comes. Without `states` these stay where they are."""
        waiting = {place: border.get(gradient_called(place), "device") for place in self.awaited}
        self.parameters.check()
        self.parameters.leave(border)
        self.waiting.check()
        self.waiting.leave(waiting)
        if states is not None:
            self.states.leave(states)
        self.parameters.come(border)
        if states is not None:
            self.states.come(states)
        self.waiting.come(waiting)

    def home(self) -> None:
        """Bring all to the device; gradients after their parameters, as PyTorch wants both on one."""
        self.parameters.home()
        self.states.home()
        self.waiting.check()
        self.waiting.home()


def bring_back_for(optimizer: torch.optim.Optimizer) -> None:
    """Bring all that an optimiser steps to the device, whatever plans have left on the host."""
    bring_back(trained_by(optimizer))
    States(optimizer).home()
    waiting = WaitingGradients(trained_by(optimizer))
    waiting.check()
    waiting.home()
