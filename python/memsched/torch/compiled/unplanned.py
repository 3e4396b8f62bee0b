"""What no plan can hold runs as Dynamo captured it, with a warning that says why."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.autograd.graph import saved_tensors_hooks

from memsched.errors import MemschedError
from memsched.torch.compiled.private import saving_is_hooked, takes_no_hooks, with_plain_checkpoints
from memsched.torch.errors import CaptureError
from memsched.torch.nests import memory_of

WITHIN_A_STEP = (
    "another thread is within a training step under the same options, and one plan is for one step at a time; give "
    "each thread a budget of its own, or call step after step"
)


class UnplannedWarning(UserWarning):
    """A part of a step runs as in plain PyTorch: the budget does not hold for it."""


def unplanned(module: fx.GraphModule, reason: BaseException, *, offload: bool = False) -> Callable[..., Any]:
    """Warn that a captured graph runs without a plan, and give what runs it so.

    With `offload`, what it saves for its backward waits on the host.
    """
    _HERE.graphs = plain_graphs() + 1
    with_plain_checkpoints(module)
    offload = offload and not takes_no_hooks(module)
    said = str(reason).strip().split("\n")[0]
    if not isinstance(reason, MemschedError):
        said = f"PyTorch cannot trace its backward ({type(reason).__name__}{': ' if said else ''}{said})"
    warn_unplanned(said + ("; what it saves for its backward waits on the host" if offload else ""))
    return _on_host(module) if offload else module.forward


_HERE = threading.local()


def plain_graphs() -> int:
    """How many graphs run without a plan, by what `unplanned` gave in this thread."""
    return getattr(_HERE, "graphs", 0)


def warn_unplanned(said: str) -> None:
    """Warn that a part of the model runs without a plan, and why."""
    warnings.warn(
        f"a part of the model runs without a plan, and may need more memory than the budget: {said}",
        UnplannedWarning,
        stacklevel=3,
    )


def _on_host(module: fx.GraphModule) -> Callable[..., Any]:
    """Run a graph such that its saved tensors wait on the host, but for those that it is given.

    Of what hooks pack, PyTorch does not see whether it is changed before the backward: it is looked at here.
    """

    def run(*args: Any) -> Any:
        if takes_no_hooks() or saving_is_hooked():
            return module.forward(*args)
        given: dict[int, list[torch.Tensor]] = {}
        for one in args:
            if isinstance(one, torch.Tensor):
                given.setdefault(memory_of(one), []).append(one)

        def pack(value: torch.Tensor) -> Callable[[], torch.Tensor]:
            if value.layout is torch.strided and memory_of(value) not in given:
                copy, device = value.to("cpu", copy=True), value.device
                return lambda: copy.to(device)
            owners = given.get(memory_of(value), [])
            if value._is_view() or not owners or any(value is one for one in owners):
                owners = [value]
            # Else it is the result of an operation in place, without the version of what it was written to.
            return partial(_unchanged, value, [(one, one._version) for one in owners])

        with saved_tensors_hooks(pack, lambda saved: saved()):
            return module.forward(*args)

    return run


def _unchanged(value: torch.Tensor, versions: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    if any(one._version != version for one, version in versions):
        raise RuntimeError(
            f"a tensor of shape {list(value.shape)} that the backward needs was changed in place after it was saved; "
            "change it after the backward, or change a copy"
        )
    return value


class Guarded:
    """A compiled graph. Where its forward fails, and plain PyTorch does not, it runs without a plan from then on.

    PyTorch traces with tensors that have no data; where their strides are not those of real ones, traced operations may
    refuse real tensors.

    What runs in place of the module that Dynamo captured changes no input before its forward is done.

    DDP compiles one bucket after the other, each for what the one before gives: it calls what is compiled without data
    first. PyTorch has such results for `traced`, which runs what AOTAutograd made.
    """

    def __init__(
        self, module: fx.GraphModule, planned: Callable[..., Any], traced: Callable[..., Any], *, offload: bool = False
    ) -> None:
        self._module, self._run, self._traced = module, planned, traced
        self._offload, self._tried = offload, False

    def __call__(self, *args: Any) -> Any:
        if not self._tried and any(isinstance(one, FakeTensor) for one in args):
            return self._traced(*args)
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
            found = with_plain_checkpoints(self._module)(
                *args
            )  # what is wrong with the model, or with what it is given, fails here, too
            self._run = unplanned(self._module, error, offload=self._offload)
        self._tried = True
        return found
