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
    """The states of one parameter while they have a good copy on the host."""

    def __init__(self) -> None:
        self._hosts: dict[str, torch.Tensor] = {}  # by name, as copies know them
        self._shown: dict[str, torch.Tensor] = {}  # the same, as the optimiser has them
        self._leaving: dict[str, torch.Tensor] = {}
        self._coming: dict[str, torch.Tensor] = {}
        self._device: dict[str, torch.device] = {}

    def offload(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            if _is_large(value):
                self._hosts[name] = traffic_on(value.device).offload(value)
                self._leaving[name] = value

    def free(self, state: dict[str, Any]) -> None:
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
            flat = self._hosts[name].view(value.dtype)
            self._shown[name] = flat.as_strided(value.shape, value.stride(), value.storage_offset())
            state[name] = self._shown[name]
        self._device = {name: value.device for name, value in self._leaving.items()}
        self._leaving = {}
        self.drop()

    def drop(self) -> None:
        """What is on its way back, or has come back, is not needed."""
        for name, value in self._coming.items():
            traffic_on(value.device).arrived(value, self._hosts[name])
        self._coming = {}

    def prefetch(self) -> None:
        for name, host in self._hosts.items():
            if name not in self._coming and name not in self._leaving:
                self._coming[name] = traffic_on(self._device[name]).prefetch(host)

    def arrive(self, state: dict[str, Any]) -> None:
        """They are on the device again, and about to change."""
        for name, value in self._leaving.items():
            traffic_on(value.device).gone(value, self._hosts[name], False)
        self.prefetch()
        for name, value in self._coming.items():
            state[name] = traffic_on(value.device).arrived(value, self._hosts[name])
        self._leaving, self._coming = {}, {}

    def show_on_device(self, state: dict[str, Any]) -> None:
        """Put copies there of what is on the host, or on its way."""
        for name, one in self._shown.items():
            state[name] = one.to(self._device[name], copy=True)

    def strange(self, state: Mapping[str, Any]) -> bool:
        """Whether somebody else has put other states there, as `load_state_dict` does."""
        return any(state.get(name) is not one for name, one in self._shown.items())

    def home(self, state: dict[str, Any]) -> None:
        """As `arrive`; states of others stay."""
        if self.strange(state):
            self.drop()
        else:
            self.arrive(state)

    def on_device(self) -> Iterator[torch.Tensor]:
        yield from self._leaving.values()
        yield from self._coming.values()
