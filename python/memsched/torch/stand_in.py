"""What stands in for the forward of one model while a plan is applied."""

from __future__ import annotations

import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from memsched.errors import MemschedError
from memsched.torch.run import Observer

_TRUSTED = "torch.autograd.graph"  # whose hooks, such as save_on_cpu, give back what they were given


class StandIn(ABC):
    """Takes the place of `model.forward`. In eval mode, and where no gradients are recorded, the own forward runs.

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
        self.observe: Callable[[], Observer | None] = lambda: None
        # torch.compile would take what is looked at before each step for constants.
        self._uncompiled = torch.compiler.disable(type(self)._planned)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None, "the model is gone"
        if not model.training or not torch.is_grad_enabled():
            return type(model).forward(model, *args, **kwargs)
        return self._uncompiled(self, model, args, kwargs)

    def _planned(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _check_surroundings()
        return self._step(model, args, kwargs)

    @abstractmethod
    def _step(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward of a planned training step."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model has the model's own forward."""
        model = self._model()
        assert model is not None, "the model is gone"
        copied = memo.get(id(model))
        return types.MethodType(type(model).forward, copied) if copied is not None else type(model).forward

    def __reduce__(self) -> Any:
        raise MemschedError(
            "a model with a plan applied cannot be pickled; call remove() first, or save its state_dict"
        )


def _check_surroundings() -> None:
    """Refuse to run where the caller has autograd do something else than record a step.

    Raises
    ------
    MemschedError
    """
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        raise MemschedError(
            "a planned step cannot run under torch.func or with forward-mode derivatives; call remove() before"
        )
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and not all(getattr(hook, "__module__", "") == _TRUSTED for hook in hooks):
        raise MemschedError(
            "a planned step runs under saved_tensors_hooks of its caller, such as those of torch.utils.checkpoint, "
            "which are not asked: what a plan keeps is its own; call the model outside of them, or call remove() before"
        )


def waiting_for_backward() -> MemschedError:
    """The error for a second forward at once."""
    return MemschedError(
        "a planned forward began while another one waits for its backward, and the budget covers one at a time; call "
        "backward() first, drop its results (del loss), or run under torch.no_grad() where no gradient is needed"
    )
