"""The optimiser's states of one parameter, which travel together between the device and the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from memsched.torch.compiled.copies import traffic_on


def _is_large(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def states_in(state: Mapping[str, Any]) -> list[torch.Tensor]:
    """Those of a parameter that may travel: all but single numbers."""
    return [one for one in state.values() if _is_large(one)]


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

    def free(self, state: dict[str, Any]) -> None:
        """From now on the optimiser has what is on the host."""
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
            flat = self._hosts[name].view(value.dtype)
            state[name] = flat.as_strided(value.shape, value.stride(), value.storage_offset())
            self._shown[name] = _Shown(state[name])
        self._leaving = {}
        self.drop()

    def drop(self) -> None:
        """What is on its way back, or has come back, is not needed."""
        for name, value in self._coming.items():
            traffic_on(value.device).arrived(value, self._hosts[name])
        self._coming = {}

    def prefetch(self) -> None:
        """Begin to copy them back."""
        for name, host in self._hosts.items():
            if name not in self._coming and name not in self._leaving:
                self._coming[name] = traffic_on(self._device).prefetch(host)

    def arrive(self, state: dict[str, Any]) -> None:
        """They are on the device again, and about to change."""
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
        self.prefetch()
        for name, value in self._coming.items():
            state[name] = traffic_on(value.device).arrived(value, self._hosts[name])
        self._leaving, self._coming = {}, {}

    def settle(self, state: Mapping[str, Any]) -> bool:
        """Between two steps: whether the optimiser has what is on the host, whoever has written to it there."""
        self.drop()
        if not self._leaving:  # else a step has failed on the way
            return all(one.is_in(state.get(name)) for name, one in self._shown.items())
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
        self._leaving = {}
        return False

    def home(self, state: dict[str, Any]) -> None:
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


class _Shown:
    """A tensor that the optimiser has, and the memory in which it lies."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value, self._memory = value, value.data_ptr()

    def is_in(self, now: Any) -> bool:
        """Whether the optimiser still has it, in the same memory."""
        return now is self.value and self.value.data_ptr() == self._memory
