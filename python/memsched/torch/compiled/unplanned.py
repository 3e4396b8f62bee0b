"""What no plan can hold runs as Dynamo captured it, with a warning that says why."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import saved_tensors_hooks

from memsched.torch.errors import CaptureError
from memsched.torch.nests import memory_of


class UnplannedWarning(UserWarning):
    """A part of a step runs as in plain PyTorch: the budget does not hold for it."""


def unplanned(module: fx.GraphModule, reason: BaseException, *, offload: bool = False) -> Callable[..., Any]:
    """Warn that a captured graph runs without a plan, and give what runs it so.

    With `offload`, what it saves for its backward waits on the host.
    """
    said = str(reason).strip().split("\n")[0]
    waits = "; what it saves for its backward waits on the host" if offload else ""
    warnings.warn(
        f"a part of the model runs without a plan, and may need more memory than the budget: {said}{waits}",
        UnplannedWarning,
        stacklevel=2,
    )
    return _on_host(module) if offload else module.forward


def _on_host(module: fx.GraphModule) -> Callable[..., Any]:
    """Run a graph such that its saved tensors wait on the host, but for those that it is given."""

    def run(*args: Any) -> Any:
        given = {memory_of(one) for one in args if isinstance(one, torch.Tensor)}

        def pack(value: torch.Tensor) -> Any:
            if value.layout is not torch.strided or memory_of(value) in given:
                return value
            return value.device, value.to("cpu", copy=True)

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            device, value = packed
            return value.to(device)

        with saved_tensors_hooks(pack, unpack):
            return module.forward(*args)

    return run


def view_or_copy(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """A view, as traced; where the strides are not the traced ones and allow none, a copy, with a warning."""
    try:
        return value.view(shape)
    except RuntimeError:
        warnings.warn(
            f"a tensor of shape {list(value.shape)} has strides {list(value.stride())}, which PyTorch did not trace: "
            "it is copied, and no plan counts the copy",
            UnplannedWarning,
            stacklevel=2,
        )
        return value.reshape(shape)


class Guarded:
    """A compiled graph. Where its forward fails, and plain PyTorch does not, it runs without a plan from then on.

    PyTorch traces with tensors that have no data; where their strides are not those of real ones, traced operations may
    refuse real tensors.

    What runs in place of the module that Dynamo captured changes no input before its forward is done.
    """

    def __init__(self, module: fx.GraphModule, planned: Callable[..., Any], *, offload: bool = False) -> None:
        self._module, self._run, self._offload, self._tried = module, planned, offload, False

    def __call__(self, *args: Any) -> Any:
        states = None if self._tried else torch.get_rng_state()
        try:
            found = self._run(*args)
        except torch.OutOfMemoryError:
            raise
        except (CaptureError, RuntimeError) as error:
            if isinstance(error, RuntimeError):
                if states is None:
                    raise
                torch.set_rng_state(states)
            found = self._module(*args)  # what is wrong with the model, or with what it is given, fails here, too
            self._run = unplanned(self._module, error, offload=self._offload)
        self._tried = True
        return found
