"""The optimiser's states of one parameter, which travel together between the device and the host."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from memsched.torch.compiled.copies import traffic_on
from memsched.torch.optimizer_state import trained_by


def _is_large(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def states_in(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """Those of a parameter that may travel: all but single numbers."""
    return [one for one in state.values() if _is_large(one)]


class States:
    """Of an optimiser, by the place of their parameter. All plans of an optimiser share where they are."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._trained = optimizer, trained_by(optimizer)
        self._travels: MutableMapping[int, Any] = _TRAVELS.setdefault(optimizer, {})

    def of(self, place: int) -> MutableMapping[str, Any]:
        """What the optimiser has; nothing before its first step."""
        return self._optimizer.state.get(self._trained[place], {})

    def has_left(self, place: int) -> bool:
        """Whether there is a good copy on the host."""
        return place in self._travels

    @property
    def some_have_left(self) -> bool:
        """Whether there is one of any."""
        return bool(self._travels)

    def leave(self, where: Mapping[int, str]) -> None:
        """Between two steps: let those be on the host alone that are to be there."""
        for place in (place for place, there in where.items() if there == "host"):
            if place in self._travels and not self._travels[place].settle(self.of(place)):
                self.home(place)
            if place not in self._travels:
                self.offload(place)
                self.free(place)

    def come(self, where: Mapping[int, str]) -> None:
        """Between two steps: bring the others to the device."""
        for place in [*self._travels]:
            if where.get(place, "device") == "device":
                self.home(place)

    def home(self, place: int | None = None) -> None:
        """Bring those of one parameter to the device, or all."""
        for one in [*self._travels] if place is None else [place]:
            self._travels.pop(one).home(self.of(one))

    def on_device(self, place: int) -> Iterator[torch.Tensor]:
        """What has memory there."""
        yield from self._travels[place].on_device() if place in self._travels else states_in(self.of(place))

    def on_host(self, place: int) -> list[torch.Tensor]:
        """What is on the host, as copies know it."""
        return self._travels[place].on_host() if place in self._travels else []

    def made_on_host(self, place: int, state: dict[str, Any]) -> None:
        """An update on the host has these; it may have made them, or others in their place."""
        self._optimizer.state[self._trained[place]] = state
        if states_in(state) and (place not in self._travels or not self._travels[place].settle(state)):
            self._travels[place] = Travelling(self._trained[place].device)
            self._travels[place].adopt(state)

    # What generated code calls, by places.

    def offload(self, place: int) -> None:
        """Begin to copy them to the host."""
        if states_in(state := self.of(place)):
            self._travels[place] = Travelling(self._trained[place].device)
            self._travels[place].offload(state)

    def free(self, place: int) -> None:
        """From now on they are on the host alone."""
        if place in self._travels:
            self._travels[place].free(self.of(place))

    def prefetch(self, place: int) -> None:
        """Begin to copy them back."""
        if place in self._travels:
            self._travels[place].prefetch()

    def arrive(self, place: int) -> None:
        """They are on the device again, and about to change."""
        if place in self._travels:
            self._travels[place].arrive(self.of(place))
            del self._travels[place]


class Travelling:
    """The states of one parameter while they have a copy on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._hosts: dict[str, torch.Tensor] = {}  # by name, as copies know them
        self._leaving: dict[str, torch.Tensor] = {}
        self._coming: dict[str, torch.Tensor] = {}
        self._shown: dict[str, _Shown] = {}  # what the optimiser has

    def offload(self, state: Mapping[str, Any]) -> None:
        """Begin to copy them to the host."""
        for name, value in state.items():
            if _is_large(value):
                self._shown[name] = _Shown(value)
                self._hosts[name] = traffic_on(value.device).offload(value)
                self._leaving[name] = value

    def adopt(self, state: MutableMapping[str, Any]) -> None:
        """They were made on the host, and stay there."""
        traffic = traffic_on(self._device)
        for name, value in state.items():
            if _is_large(value):
                self._hosts[name] = traffic.adopt(value)
                self._show(name, value, state)

    def on_host(self) -> list[torch.Tensor]:
        """What they are on the host, as copies know it, while they are there alone."""
        return [*self._hosts.values()]

    def free(self, state: MutableMapping[str, Any]) -> None:
        """From now on the optimiser has what is on the host."""
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
            self._show(name, value, state)
        self._leaving = {}
        self.drop()

    def _show(self, name: str, value: torch.Tensor, state: MutableMapping[str, Any]) -> None:
        """Let the optimiser have what is on the host of a value."""
        state[name] = self._shown_for(name, value)
        self._shown[name] = _Shown(state[name])

    def _shown_for(self, name: str, value: torch.Tensor) -> torch.Tensor:
        flat = self._hosts[name].view(value.dtype)
        return flat.as_strided(value.shape, value.stride(), value.storage_offset())

    def drop(self) -> None:
        """What is on its way back, or has come back, is not needed."""
        while self._coming:
            name, value = self._coming.popitem()  # first, as an interrupt may come between
            traffic_on(value.device).arrived(value, self._hosts[name])

    def prefetch(self) -> None:
        """Begin to copy them back."""
        for name, host in self._hosts.items():
            if name not in self._coming and name not in self._leaving:
                self._coming[name] = traffic_on(self._device).prefetch(host)

    def arrive(self, state: MutableMapping[str, Any]) -> None:
        """They are on the device again, and about to change."""
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
        self._leaving = {}
        self.prefetch()
        while self._coming:
            name, value = self._coming.popitem()
            state[name] = traffic_on(value.device).arrived(value, self._hosts[name])

    def settle(self, state: MutableMapping[str, Any]) -> bool:
        """Between two steps: whether the optimiser has what is on the host, whoever has written to it there."""
        self.drop()
        if not self._leaving:  # else a step has failed on the way
            return all(one.is_in(state.get(name)) for name, one in self._shown.items())
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
            if self._shown[name].is_in(state.get(name)):  # a stand-in, perhaps, if it failed just then
                state[name] = value
        self._leaving = {}
        return False

    def home(self, state: MutableMapping[str, Any]) -> None:
        """As `arrive`, between two steps; states that the optimiser has otherwise are moved to the device."""
        if self.settle(state):
            self.arrive(state)
            return
        for name, value in state.items():
            if _is_large(value):
                state[name] = value.to(self._device)

    def on_device(self) -> Iterator[torch.Tensor]:
        """What has memory there."""
        yield from self._leaving.values()
        yield from self._coming.values()


_TRAVELS: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, Travelling]] = weakref.WeakKeyDictionary()
# Of each optimiser, by place: what has a good copy on the host.


class _Shown:
    """A tensor that the optimiser has, and the memory in which it lies."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self._memory = value, value.data_ptr()

    def is_converted(self, now: Any) -> bool:
        """Whether it lies in other memory now, as after `model.double()`."""
        return now is self.value and self.value.data_ptr() != self._memory

    def is_in(self, now: Any) -> bool:
        """Whether the optimiser still has it, in the same memory."""
        return now is self.value and self.value.data_ptr() == self._memory
