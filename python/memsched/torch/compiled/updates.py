"""Updates by the optimiser as operations of a captured step: each runs once its gradient is there.

What an operation of the graph calls is the optimiser's own `step`, for one parameter. So lr schedulers, `state_dict`
and parameter groups work as ever. The states of a parameter travel together, where a plan says so: on the host they
are tensors of the optimiser, too, so that it can be saved at any time between two steps.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch

from memsched.errors import MemschedError
from memsched.result import Result
from memsched.torch.compiled.clipping import factor_of, norm_of, norm_of_all
from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.host_updates import HostUpdates
from memsched.torch.compiled.how import PLAIN, How
from memsched.torch.compiled.lasting import Lasting, bring_back_for
from memsched.torch.compiled.parameters import Parameters
from memsched.torch.compiled.private import is_autocast_on
from memsched.torch.compiled.scaling import FIGURES, SCALE_BYTES, Scaling
from memsched.torch.compiled.update_costs import SMALL, HostSpeed, UpdateCosts
from memsched.torch.compiled.update_mark import Update
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import copy_of, distinct_bytes, form_of, group_of_one, trained_by

_NORM = 8  # bytes, at most
_SERIAL = itertools.count()
KNOWN: weakref.WeakValueDictionary[int, Updates]  # by serial number


class HasResult(Protocol):
    """A plan."""

    @property
    def result(self) -> Result: ...


class Updates:
    """An optimiser whose updates are operations of a step.

    With what is `looked_at` the optimiser is a copy of that one, without data, and updates nothing.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        looked_at: Updates | None = None,
        how: How = PLAIN,
        scaling: Scaling | None = None,
        parameters: Parameters | None = None,
        host: HostSpeed = None,
    ) -> None:
        self.optimizer, self.scaling = optimizer, scaling
        known = parameters if looked_at is None else looked_at.lasting.parameters
        self.lasting: Lasting = Lasting(optimizer, known or Parameters({}))
        self.names_of: dict[int, str] = {}  # of those that may travel, by identity: of the model, or its copy
        self.how: How = how if looked_at is None else looked_at.how
        self.norm: torch.Tensor | None = None  # of the gradients of the last step, before they were clipped
        self.norm_type: torch.dtype | None = None
        self.dry = looked_at is not None
        groups = enumerate(optimizer.param_groups)
        self._trained = [(k, one) for k, group in groups for one in group["params"]]  # with the numbers of their groups
        self._ranks = [rank for group in optimizer.param_groups for rank in range(len(group["params"]))]
        self._device = self._trained[0][1].device if self._trained else torch.device("cpu")  # none is away yet
        self._places = {id(one): place for place, (_, one) in enumerate(self._trained)}
        self.names: dict[str, tuple[int, bool]] = {}  # of the model: which tensors they were, and if they were trained
        self.form = form_of(optimizer)
        self.places: set[int] = set()  # of the parameters that the step updates
        self.hosted: frozenset[int] = frozenset()  # places whose updates run on the host
        self._costs = UpdateCosts(optimizer, self.how.waits, host)
        self._on_host = HostUpdates(optimizer)
        self._original = looked_at or self
        if looked_at is not None:  # a loss that is no part of the model has its parameters in their place
            self._places |= looked_at._places
        # PyTorch's own wrappers take longer than the update of a small parameter. The first of a step goes through
        # them, so that a scheduler sees that there was one.
        self._step, self._told = inspect.unwrap(type(optimizer).step), False
        self._entered = 0  # forwards in the present step
        self._serial = next(_SERIAL)
        KNOWN[self._serial] = self

    def parameter(self, place: int) -> torch.Tensor:
        """Of the optimiser, by place."""
        return self._trained[place][1]

    def group(self, place: int) -> dict[str, Any]:
        """The group that a parameter is in, with its options, as if it were there alone."""
        number, _ = self._trained[place]
        return group_of_one(self.optimizer.param_groups[number], self._ranks[place])

    # What generated code calls, and what is called around it.

    @property
    def serial(self) -> int:
        """By which generated code knows it."""
        return self._serial

    @property
    def trained(self) -> set[int]:
        """The parameters that it updates, by identity."""
        return set(self._places)

    def place_of(self, parameter: object) -> int | None:
        """Of a parameter among those of the optimiser; None for what it does not update."""
        return self._places.get(id(parameter))

    def are_of(self, one: torch.Tensor) -> bool:
        """Whether the step updates this parameter."""
        return self._places.get(id(one)) in self.places

    def note_norm(self, example: torch.Tensor) -> None:
        """What the norm of all gradients will be like."""
        self._original.norm_type = example.dtype

    def in_model(self, places: Iterable[int]) -> list[int]:
        """Places in the order of the model's parameters."""
        known = self._original
        ranks = {known._places.get(one): rank for rank, (one, _) in enumerate(known.names.values())}
        return sorted(places, key=lambda place: ranks.get(place, place))

    def cost(self, place: int) -> Update:
        """Of an update, whose place is left open."""
        known = self._original
        if not known.how.updates:
            return self.cost_of_adding(place)
        return known._costs.of(known.parameter(place), known.group(place))

    def cost_of_adding(self, place: int, calls: int = 1) -> Update:
        """Of what adds a gradient to that from before, and reads the sum again with further calls."""
        parameter = self._original.parameter(place)
        seconds = self._original._costs.on_host_adding(parameter)
        return Update(place, 0, 0, 0, (2 + calls) * parameter.nbytes, calls, host_seconds=seconds)

    @property
    def host_times(self) -> str:
        """Where the times of updates on the host come from."""
        return self._original._costs.host_times

    @property
    def failed_on_host(self) -> str:
        """What was said where one could not be timed there."""
        return self._original._costs.failed

    @property
    def state_bytes(self) -> int:
        """Of the states of all parameters, once they are there."""
        found = _NORM if self.how.max_norm is not None else 0  # that of the last step
        found += SCALE_BYTES if self.scaling is not None else 0
        for place, one in enumerate(trained_by(self.optimizer)):
            if (state := self.lasting.states.of(place)) or not one.requires_grad:
                there = (k for k in tensors_of(state) if k.dim() > 0 or k.device.type == one.device.type)
                found += distinct_bytes(there)
            else:
                update = self.cost(place)
                found += update.state + update.numbers
        return found

    def copy(self) -> Updates:
        """Of a copy of the optimiser for the same parameters, with states of its own, all on the device.

        Parameters that have none get those of a first step.
        """
        memo: dict[int, Any] = {id(one): one for one in trained_by(self.optimizer)}
        scaling = None if self.scaling is None else self.scaling.copy(self._device)
        optimizer, parameters = copy_of(self.optimizer, memo), self.lasting.parameters
        made = Updates(optimizer, how=self.how, scaling=scaling, parameters=parameters)
        made.lasting.like(self.lasting)
        made.names, made.names_of, made._costs = self.names, self.names_of, self._costs
        made.norm_type, made.places, made.hosted = self.norm_type, self.places, self.hosted
        groups = made.optimizer.param_groups
        for place, one in enumerate(trained_by(self.optimizer)):
            state = made.optimizer.state
            if self.lasting.states.has_left(place):
                large = ((name, k) for name, k in state[one].items() if isinstance(k, torch.Tensor) and k.dim() > 0)
                state[one] |= {name: k.to(one.device) for name, k in large}
            elif place in self.lasting.planned | self.lasting.resident and not state.get(one):  # as after a step
                like = torch.nn.Parameter(one.detach().clone())
                like.grad = torch.full_like(like, SMALL)
                own = group_of_one(groups[self._trained[place][0]], self._ranks[place])
                made.optimizer.param_groups = [{**own, "params": [like]}]
                made.optimizer.step()
                state[one] = state.pop(like, {})
        made.optimizer.param_groups = groups
        return made

    def that_wait(self) -> Updates:
        """Of a micro-batch whose gradients wait for the step of these updates."""
        how = replace(self.how, max_norm=None, updates=False, scaled=False)
        parameters = Parameters(self.lasting.parameters.named)
        made = Updates(self.optimizer, how=how, parameters=parameters, host=self._costs.host)
        made.names, made.names_of = self.names, dict(self.names_of)
        return made

    def begin(self) -> None:
        """A step begins."""
        self._told, self._entered = False, 0
        self.lasting.begin()
        if self.norm is None and self.norm_type is not None:
            self.norm = torch.zeros((), dtype=self.norm_type, device=self._device)
        if self.scaling is not None:
            self.scaling.begin(self._device)
        if _bring_back not in self.optimizer._optimizer_step_pre_hooks.values():
            self.optimizer.register_step_pre_hook(_bring_back)

    def follow(self, plan: HasResult | None) -> None:
        """Bring all that lasts to where it is between two steps of the plan that the present step follows."""
        if plan is not None:
            self.lasting.follow(plan.result.schedule)

    def entered(self) -> None:
        """A forward begins: in a step of several, a parameter might be updated before its gradient is complete."""
        self._entered += 1
        if self._entered > 1 and not self.dry:  # a look goes on, and counts them
            raise MemschedError(
                "the step runs several graphs, and with update=True it was planned as one; plan with update=False"
            )

    def keep(self, names: Iterable[str], staying: Iterable[str]) -> None:
        """The step that is planned moves these parameters, and reads others that stay on the device."""
        self.lasting.parameters.keep(names, staying)
        self.names_of = {key: name for key, name in self.names_of.items() if name in self.lasting.parameters.named}

    def rest(self) -> None:
        """After a step, complete or not: what is on the host can be read and written there."""
        try:
            made, error = self._on_host.end(traffic_on(self._device))
            for place, state in made.items():
                self.lasting.states.made_on_host(place, state)
        finally:
            self.lasting.parameters.rest()
            for lane in ("out", "in") if self.lasting.some_travel else ():
                traffic_on(self._device).finish(lane)
        if error is not None:
            raise MemschedError(f"an update on the host has failed: {error}") from error

    def ended(self, model: torch.nn.Module) -> None:
        """After a step: whatever has a gradient of its own now was not updated, or not with all of its gradient."""
        if not self.how.updates:
            return
        trained = set(map(id, trained_by(self.optimizer)))
        for name, one in model.named_parameters():
            if one.grad is not None and id(one) in trained:
                raise MemschedError(
                    f"{name} got a gradient that no update of the plan has seen: the step is not the one that was "
                    "planned, as where a parameter is trained or added to the optimizer later; plan it as it is now"
                )
        if self.scaling is not None:
            self.scaling.end(self._device)

    def add(self, place: int, given: torch.Tensor | None, gradient: torch.Tensor, copied: bool) -> torch.Tensor:
        """Add to the gradient of a parameter, whose memory the step was given, as autograd does; returns the sum.

        Without one from before the gradient is the sum, or is `copied` if others may read it or it lies otherwise.
        """
        parameter = self.parameter(place)
        self.lasting.waiting.arrive(place)
        copied = copied or (place in self.lasting.awaited and gradient.untyped_storage().nbytes() != parameter.nbytes)
        if given is not None and given.data_ptr() != parameter.data_ptr():
            raise MemschedError(
                f"parameter {place} of the optimizer is no longer the one that the step trains, or a hook for saved "
                "tensors has copied it; plan the step as it is, and call it outside of such hooks"
            )
        with torch.no_grad():
            if parameter.grad is not None:
                parameter.grad.add_(gradient)
            else:
                parameter.grad = torch.empty_like(parameter).copy_(gradient) if copied else gradient
        return parameter.grad

    def seen(self, gradient: torch.Tensor, like: torch.Tensor | None, *, own: bool = False) -> torch.Tensor:
        """What all updates wait for of a gradient, laid out as another tensor if one is given; or of the `own` sum."""
        if self.scaling is None or self.dry:
            return self.example(gradient, like)
        return self.scaling.figures(gradient, like, measured=self.how.max_norm is not None, own=own)

    def example(self, gradient: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
        """The same, of tensors without data, too."""
        norm = norm_of(gradient, like)
        return torch.stack([norm] * FIGURES) if self.how.scaled else norm

    def factor(self, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """By which all gradients are clipped; where they are not, some number."""
        found = norm_of_all([one[0] for one in seen] if self.how.scaled else seen)
        if self.dry:
            return found
        if self.scaling is not None:
            self.scaling.decide(seen)
        if self.norm is not None:
            self.norm.copy_(found)
        return found if self.how.max_norm is None else factor_of(found, self.how.max_norm)

    def update(self, place: int, factor: torch.Tensor | None) -> None:
        """Let the optimiser step one parameter, with the gradient that it has, times a factor."""
        parameter, group = self.parameter(place), self.group(place)
        groups = self.optimizer.param_groups
        cast = torch.autocast(parameter.device.type, enabled=False) if is_autocast_on() else nullcontext()
        try:
            self.lasting.states.arrive(place)
            self.lasting.waiting.arrive(place)
            if self.scaling is not None and self.scaling.skips:
                return
            _AT_WORK.add(id(self.optimizer))
            self.optimizer.param_groups = [{**group, "params": [parameter]}]
            with cast, torch.no_grad():
                if self.scaling is not None and parameter.grad is not None and not self.how.adds:
                    self.scaling.unscale(parameter.grad)
                if self.how.max_norm is not None and parameter.grad is not None and factor is not None:
                    parameter.grad.mul_(factor)
                if self._told and not group.get("fused"):
                    self._step(self.optimizer)
                else:
                    self._told = True
                    self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
            parameter.grad = None
            _AT_WORK.discard(id(self.optimizer))
            self.lasting.parameters.updated(parameter)

    def add_on_host(self, place: int, gradient: torch.Tensor) -> None:
        """Let the host add a gradient, by a copy that is there, to that from before."""
        self._on_host.add_up(self.lasting.waiting.added_on_host(place, gradient))

    def update_on_host(
        self, place: int, gradient: torch.Tensor | None, copied: bool, factor: torch.Tensor | None
    ) -> None:
        """Let the host step one parameter, with copies that are there of its gradient and of a factor for that.

        Without a gradient it is the one that waits.
        """
        parameter, scaling = self.parameter(place), self.scaling
        gradient = self.lasting.waiting.taken(place) if gradient is None else gradient
        if gradient is None or (scaling is not None and scaling.skips):
            return
        self._tell()
        clipped, adds = factor if self.how.max_norm is not None else None, self.how.adds

        def change(gradient: torch.Tensor) -> None:
            if scaling is not None and not adds:
                scaling.unscale(gradient)
            if clipped is not None:
                gradient.mul_(clipped)

        host = self.lasting.parameters.on_host(parameter)
        given = torch.nn.Parameter(host), gradient, copied
        update = self._on_host.add(place, self.group(place), given, change, self.optimizer.state.get(parameter))
        reads = [gradient] if factor is None else [gradient, factor]
        traffic_on(self._device).compute(update, reads, [host, *self.lasting.states.on_host(place)])

    def _tell(self) -> None:
        """Let schedulers see that the optimiser steps, where its first update of a step is on the host."""
        if self._told:
            return
        self._told, groups = True, self.optimizer.param_groups
        try:
            _AT_WORK.add(id(self.optimizer))
            self.optimizer.param_groups = [group_of_one(one, None) for one in groups]
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
            _AT_WORK.discard(id(self.optimizer))


KNOWN = weakref.WeakValueDictionary()
_AT_WORK = set[int]()  # optimisers that update by a plan, by identity


def _bring_back(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step of the optimiser that is none of a plan's."""
    if id(optimizer) not in _AT_WORK:
        bring_back_for(optimizer)
