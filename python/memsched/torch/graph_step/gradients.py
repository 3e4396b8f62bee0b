"""Where the gradients of a step go: onto those that a parameter has, as autograd adds them, or to become its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch


class Taker(Protocol):
    """Takes gradients of parameters, by name."""

    def add(self, name: str, gradient: torch.Tensor) -> None: ...


class Discarded:
    """Takes them and keeps none."""

    def add(self, name: str, gradient: torch.Tensor) -> None: ...


class Gradients:
    """Takes the gradients of the parameters as they are made.

    A parameter that has a gradient gets each new one added at once, in place. One that has none gets the sum of the
    step at its end, so that a step that fails leaves none behind.

    Parameters
    ----------
    parameters : mapping of str to Parameter
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self._parameters = parameters
        self._new: dict[str, torch.Tensor] = {}

    def add(self, name: str, gradient: torch.Tensor) -> None:
        """One more gradient of a parameter."""
        so_far = self._parameters[name].grad
        so_far = self._new.get(name) if so_far is None else so_far
        if so_far is None:
            self._new[name] = gradient
        else:
            so_far.add_(gradient)

    def made(self) -> list[torch.Tensor]:
        """Those that wait for the end of the step."""
        return list(self._new.values())

    def finish(self) -> None:
        """The step has ended well."""
        for name, gradient in self._new.items():
            self._parameters[name].grad = gradient
        self._new.clear()
