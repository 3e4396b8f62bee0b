"""What stands in for the forward of one model while a plan is applied."""

from __future__ import annotations

import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from memsched.errors import MemschedError
from memsched.torch.run import Observer


class StandIn(ABC):
    """Takes the place of `model.forward`. In eval mode, and where no gradients are recorded, it is the own forward.

    Parameters
    ----------
    model : torch.nn.Module

    Attributes
    ----------
    observe : callable
        Asked at each step for an observer, or None.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self._original = type(model).forward
        self.observe: Callable[[], Observer | None] = lambda: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None, "the model is gone"
        if not model.training or not torch.is_grad_enabled():
            return self._original(model, *args, **kwargs)
        return self._step(model, args, kwargs)

    @abstractmethod
    def _step(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of a planned training step."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model has the model's own forward."""
        copied = memo.get(id(self._model()))
        return types.MethodType(self._original, copied) if copied is not None else self._original

    def __reduce__(self) -> Any:
        raise MemschedError(
            "a model with a plan applied cannot be pickled; call remove() first, or save its state_dict"
        )


def waiting_for_backward() -> MemschedError:
    """The error for a second forward at once."""
    return MemschedError(
        "a planned forward began while another one waits for its backward, and the budget covers one at a time; call "
        "backward() first, drop its results (del loss), or run under torch.no_grad() where no gradient is needed"
    )
