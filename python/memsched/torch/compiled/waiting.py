"""Gradients of micro-batches that wait for a step, and travel in the plan of one as states of the optimiser do."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from memsched.torch.compiled.copies import traffic_on
from memsched.torch.compiled.host_updates import Sum
from memsched.torch.compiled.states import States, Travelling, states_in


class WaitingGradients(States):
    """By the place of their parameter. All plans and optimisers of a parameter share where its gradient is.

    While one is on the host alone, `.grad` is a stand-in of NaN, to which PyTorch refuses to write. Whoever puts
    something else there, as `zero_grad()` does, has dropped what is on the host.
    """

    def __init__(self, trained: list[torch.Tensor]) -> None:
        self._trained = trained
        self._travels = _ByPlace(trained)

    def prepare(self) -> None:
        """Make what stands for gradients that are elsewhere: a step would have to have room for it."""
        for one in (one for one in self._trained if one.numel() > 1):
            _stand_in(one, one.device)

    def of(self, place: int) -> _Gradient:
        """What `.grad` is, under its only name."""
        return _Gradient(self._trained[place])

    def added_on_host(self, place: int, gradient: torch.Tensor) -> Sum:
        """Let the host add a gradient, by its copy there, to that from before; there may be none."""
        own, known = self._trained[place], self._on_host(place)
        first = known is None
        if known is None:
            self._travels[place] = known = _Waiting(own)
            known.make_room()
        made = Sum(known.there, gradient, first)
        traffic_on(own.device).compute(made, [gradient], [known.there])
        return made

    def offload(self, place: int) -> None:
        """Begin to copy it to the host."""
        if states_in(state := self.of(place)):
            self._travels[place] = _Waiting(self._trained[place])
            self._travels[place].offload(state)

    def is_here(self, parameter: torch.Tensor) -> bool:
        """Whether `.grad` of a parameter is no stand-in."""
        known = _WAITING.get(parameter)
        return known is None or not known.settle(_Gradient(parameter))

    def taken(self, place: int) -> torch.Tensor | None:
        """What is on the host, which from now on is that of who takes it; `.grad` is None."""
        known = self._on_host(place)
        self._travels.pop(place, None)
        self._trained[place].grad = None
        return None if known is None else known.there

    def _on_host(self, place: int) -> _Waiting | None:
        known = self._travels.get(place)
        return known if known is not None and known.settle(self.of(place)) else None


class _Waiting(Travelling):
    """The gradient of one parameter while it has a copy on the host."""

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__(parameter.device)
        self._parameter = parameter

    def make_room(self) -> None:
        """For a gradient that is made on the host, and stays there."""
        own = self._parameter
        like = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device="meta")
        self._hosts[_NAME] = traffic_on(self._device).room_for(like)
        self._show(_NAME, like, _Gradient(own))

    @property
    def there(self) -> torch.Tensor:
        """As a tensor on the host."""
        return traffic_on(self._device).on_host(self._hosts[_NAME])

    def _shown_for(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return _stand_in(value, self._device)


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

    def __getitem__(self, place: int) -> _Waiting:
        if self._trained[place] not in _WAITING:
            raise KeyError(place)
        found: _Waiting = _WAITING[self._trained[place]]
        return found

    def __setitem__(self, place: int, value: _Waiting) -> None:
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
_NAN: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def _stand_in(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A single NaN for all numbers of all gradients that are elsewhere. Tensors of inference cannot be filled."""
    key = like.dtype, device
    with torch.inference_mode():
        if key not in _NAN:
            _NAN[key] = torch.full((1,), float("nan"), dtype=like.dtype, device=device)
        return _NAN[key].expand(like.shape)
