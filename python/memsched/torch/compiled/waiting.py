"""Gradients of micro-batches that wait for a step, and travel in the plan of one as states of the optimiser do."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from memsched.errors import InvalidInputError
from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.host_updates import Sum
from memsched.torch.compiled.states import States, Travelling, states_in


class WaitingGradients(States):
    """By the place of their parameter. All plans and optimisers of a parameter share where its gradient is.

    While one is on the host alone, `.grad` is a stand-in of NaN, to which PyTorch refuses to write. Whoever puts
    something else there, as `zero_grad()` does, has dropped what is on the host; so has whoever fills it by `.data`.
    """

    def __init__(self, trained: list[torch.Tensor]) -> None:
        self._trained = trained
        self._travels = _ByPlace(trained)

    def prepare(self) -> None:
        """Make what stands for gradients that are elsewhere: a step would have to have room for it."""
        _make_numbers([one for one in self._trained if one.numel() > 1 and one not in _NUMBERS])

    def of(self, place: int) -> _Gradient:
        """What `.grad` is, under its only name."""
        return _Gradient(self._trained[place])

    def check(self) -> None:
        """Between two steps: what was written to a stand-in is the gradient.

        Raises
        ------
        InvalidInputError
            A stand-in was converted, so that a gradient would be lost.
        """
        written = dict[int, list[bool]]()  # by pool
        for place, known in [*self._travels.items()]:
            own = self._trained[place]
            if known.is_converted(own.grad) and bool(own.grad.isnan().all()):
                raise InvalidInputError(
                    f"the gradient of a parameter of shape {tuple(own.shape)} waits on the host, and what stands for "
                    "it was converted, as by model.double() or .to(); call bring_back() before that, or zero_grad() to "
                    "drop it"
                )
            if not known.is_shown(own.grad):
                continue
            pool, number = _NUMBERS[own]
            if id(pool) not in written:
                written[id(pool)] = [not one for one in pool.isnan().tolist()]
            if written[id(pool)][number]:
                own.grad = torch.empty_like(own).copy_(own.grad)
                del self._travels[place]
                with torch.inference_mode():
                    pool[number] = math.nan

    def added_on_host(self, place: int, gradient: torch.Tensor) -> Sum:
        """Let the host add a gradient, by its copy there, to that from before; there may be none."""
        own, known = self._trained[place], self._on_host(place)
        first = known is None
        if known is None:
            self._travels[place] = known = _OnHost(own, own.device)
            known.make_room(own)
        made = Sum(known.there, gradient, first)
        traffic_on(own.device).compute(made, [gradient], [known.there])
        return made

    def offload(self, place: int) -> None:
        """Begin to copy it to the host."""
        for value in states_in(state := self.of(place)):
            self._travels[place] = _OnHost(self._trained[place], value.device)
            self._travels[place].offload(state)

    def is_here(self, parameter: torch.Tensor) -> bool:
        """Whether `.grad` of a parameter is no stand-in."""
        return parameter not in _WAITING or not _WAITING[parameter].is_shown(parameter.grad)

    def taken(self, place: int) -> torch.Tensor | None:
        """What is on the host, which from now on is that of who takes it; `.grad` is None."""
        known = self._on_host(place)
        self._travels.pop(place, None)
        self._trained[place].grad = None
        return None if known is None else known.there

    def _on_host(self, place: int) -> _OnHost | None:
        known = self._travels.get(place)
        return known if known is not None and known.settle(self.of(place)) else None


class _OnHost(Travelling):
    """The gradient of one parameter while it has a copy on the host. It does not keep the parameter."""

    def __init__(self, parameter: torch.Tensor, device: torch.device) -> None:
        super().__init__(device)
        self._stand_in = _stand_in(parameter)

    def make_room(self, parameter: torch.Tensor) -> None:
        """For a gradient that is made on the host, and stays there."""
        size, stride = parameter.shape, parameter.stride()
        like = torch.empty_strided(size, stride, dtype=parameter.dtype, device="meta")
        self._hosts[_NAME] = traffic_on(self._device).room_for(like)
        self._show(_NAME, like, _Gradient(parameter))

    @property
    def there(self) -> torch.Tensor:
        """As a tensor on the host."""
        return traffic_on(self._device).on_host(self._hosts[_NAME])

    def is_shown(self, gradient: Any) -> bool:
        """Whether what `.grad` is stands for it."""
        return not self._leaving and _NAME in self._shown and self._shown[_NAME].is_in(gradient)

    def is_converted(self, gradient: Any) -> bool:
        """Whether it is what stood for it, in other memory."""
        return not self._leaving and _NAME in self._shown and self._shown[_NAME].is_converted(gradient)

    def _shown_for(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self._stand_in


_NAME = "grad"


class _Gradient(MutableMapping[str, Any]):
    """`.grad` of a parameter, as if it were a state of the optimiser."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = parameter

    def __getitem__(self, name: str) -> torch.Tensor:
        if self._parameter.grad is None:
            raise KeyError(name)
        return self._parameter.grad

    def __setitem__(self, name: str, value: torch.Tensor) -> None:
        self._parameter.grad = value

    def __delitem__(self, name: str) -> None:
        self._parameter.grad = None

    def __iter__(self) -> Iterator[str]:
        return iter([] if self._parameter.grad is None else [_NAME])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _ByPlace(MutableMapping[int, Any]):
    """What is known of parameters, by their places."""

    def __init__(self, trained: list[torch.Tensor]) -> None:
        self._trained = trained

    def __getitem__(self, place: int) -> _OnHost:
        if self._trained[place] not in _WAITING:
            raise KeyError(place)
        found: _OnHost = _WAITING[self._trained[place]]
        return found

    def __setitem__(self, place: int, value: _OnHost) -> None:
        _WAITING[self._trained[place]] = value

    def __delitem__(self, place: int) -> None:
        if self._trained[place] not in _WAITING:
            raise KeyError(place)
        del _WAITING[self._trained[place]]

    def __iter__(self) -> Iterator[int]:
        return (place for place, one in enumerate(self._trained) if one in _WAITING)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_WAITING: Any = WeakIdKeyDictionary()  # of each parameter
_NUMBERS: Any = WeakIdKeyDictionary()  # of each parameter, a tensor of NaN and the place of its own number there


def _make_numbers(parameters: list[torch.Tensor]) -> None:
    groups = defaultdict[tuple[torch.dtype, torch.device], list[torch.Tensor]](list)
    for one in parameters:
        groups[one.dtype, one.device].append(one)
    for (dtype, device), alike in groups.items():
        with torch.inference_mode():
            pool = torch.full((len(alike),), math.nan, dtype=dtype, device=device)
        for number, one in enumerate(alike):
            _NUMBERS[one] = pool, number


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    """One number for all numbers of a gradient that is elsewhere. PyTorch lets nobody fill tensors of inference."""
    if parameter not in _NUMBERS:
        _make_numbers([parameter])
    pool, number = _NUMBERS[parameter]
    with torch.inference_mode():
        return pool[number].expand(parameter.shape)
