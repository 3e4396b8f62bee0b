"""What a training step of plain PyTorch takes once it repeats: counted on tensors without data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import functional

from memsched.errors import InvalidInputError
from memsched.study.fit import Steady
from memsched.torch.compiled.leftovers import Leftovers
from memsched.torch.compiled.look import Loss, check_loss, without_data
from memsched.torch.compiled.private import optimizer_hooks_aside
from memsched.torch.errors import CaptureError, looks_at_values
from memsched.torch.meter import Meter
from memsched.torch.module_state import generators_unchanged, gradients_aside, leaves_behind, unchanged
from memsched.torch.nests import tensors_of
from memsched.torch.optimizer_state import cannot_step, check_step, distinct_bytes, trained_by
from memsched.torch.positions import Positions
from memsched.torch.substitutes import Calls, Substituted, grouped_mm, kernels_of
from memsched.torch.weightless import Unwritten, fake_mode_of, meta_as_cpu


def steady(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optimizer: torch.optim.Optimizer | int | None,
    loss: Loss | None,
    *,
    micro_batches: int = 1,
    capability: tuple[int, int] | None = None,
) -> Steady:
    """Count the bytes of a plain training step. Nothing is computed, and no memory is needed for its tensors.

    It is the second of two, so that the optimiser's state is there. Gradients are released after each step, and what
    the model returned is held until then, as in a variable of the caller's. Of the
    micro-batches that a step accumulates, two are counted at most: the others are as the second. With a GPU's compute
    capability, what its kernels keep for the backward counts, and an optimiser updates its parameters together, as on
    CUDA if nobody says otherwise.

    Raises
    ------
    CaptureError
        The step looks at values of tensors.
    InvalidInputError
        The model or the optimiser cannot be copied, the optimiser does not step tensors without data, or its step calls
        hooks.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        check_step(optimizer)
    known = fake_mode_of([*model.parameters(), *model.buffers(), *tensors_of((args, kwargs))])
    mode = known or FakeTensorMode(allow_non_fake_inputs=True)
    left = nullcontext() if known else Leftovers(mode).taken_back()
    model_as_it_was = unchanged(model, loss, tensors=False)
    learning = [*model.parameters(), *(one for one in tensors_of((args, kwargs)) if one.is_leaf)]
    grads_aside = gradients_aside(learning)
    with meta_as_cpu(), generators_unchanged(), optimizer_hooks_aside(), grads_aside, left, model_as_it_was:
        copied = [without_data(mode, model, args, kwargs, optimizer)]
        with mode, torch.enable_grad(), torch.autograd.set_detect_anomaly(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _told(model):
                return _Counted(mode, *copied.pop(), loss=loss, capability=capability).steps(micro_batches)


class _Counted:
    """Steps of a model without data. Leaves beside it, such as weights of the loss, have data, and keep it."""

    def __init__(
        self,
        mode: FakeTensorMode,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        optimizer: torch.optim.Optimizer | int | None,
        *,
        loss: Loss | None,
        capability: tuple[int, int] | None,
    ) -> None:
        self._model, self._args, self._kwargs, self._loss = model, args, kwargs, loss
        self._mode = mode
        self._beside: dict[torch.Tensor, torch.Tensor] = {}  # such leaves, and what stands for them without data
        self._optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        self._declared = optimizer if isinstance(optimizer, int) else 0
        self._calls: Calls = {torch._grouped_mm: grouped_mm}
        if capability is not None:
            self._calls |= {**kernels_of(capability), functional.dropout: _dropout}
        groups = [] if capability is None or self._optimizer is None else self._optimizer.param_groups
        for group in groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def steps(self, micro_batches: int) -> Steady:
        """Two of them, of which the second counts."""
        for _ in range(2):
            self._release()
            highest = 0
            for _ in range(min(micro_batches, 2)):
                with Positions(), _metered(self._held) as meter, Unwritten(self._mode), Substituted(self._calls):
                    self._learn()
                highest = max(highest, meter.peak)
            gradients, update = distinct_bytes(self._gradients()), self._updated()
        return Steady(
            parameters=distinct_bytes(self._parameters()),
            buffers=distinct_bytes(self._model.buffers()),
            inputs=distinct_bytes(self._given()),
            optimizer=distinct_bytes(self._state()) + self._declared,
            gradients=gradients,
            peak_forward_backward=highest + self._declared,
            peak_update=update + self._declared,
        )

    def _learn(self) -> None:
        torch.clear_autocast_cache()  # a step has a region of its own around its forward, which makes its casts anew
        held = result = self._model(*self._args, **self._kwargs)
        if self._loss is not None:  # what the model returned is held until the end, as in a variable of the caller's
            result = self._loss(held)
            check_loss(result)
        torch.clear_autocast_cache()
        differentiable = [one for one in tensors_of(result) if one.requires_grad]
        if not differentiable:
            raise InvalidInputError("no result of the model needs a gradient; there is no training step to count")
        gradients = None if self._loss is not None else [torch.empty_like(one) for one in differentiable]
        beside = [leaf for leaf in leaves_behind(differentiable) if not isinstance(leaf, FakeTensor)]
        with gradients_aside(beside):
            for leaf in beside:
                self._beside[leaf] = self._mode.from_tensor(leaf)
                leaf.grad = self._beside[leaf].grad
            torch.autograd.backward(differentiable, gradients)
            for leaf in beside:
                self._beside[leaf].grad = leaf.grad

    def _release(self) -> None:
        for one in (*self._learning(), *self._given()):
            one.grad = None

    def _learning(self) -> list[torch.Tensor]:
        """What a backward gives gradients to."""
        return [*self._model.parameters(), *self._beside.values()]

    def _parameters(self) -> list[torch.Tensor]:
        return [*self._learning(), *trained_by(self._optimizer)]

    def _given(self) -> list[torch.Tensor]:
        return tensors_of((self._args, self._kwargs))

    def _updated(self) -> int:
        if self._optimizer is None:
            return 0
        with _metered(self._held) as meter:
            try:
                type(self._optimizer).step(self._optimizer)
            except Exception as error:  # of any kind: it is the caller's code
                raise cannot_step(self._optimizer, error, stepping=True) from error
        return meter.peak

    def _gradients(self) -> list[torch.Tensor]:
        named = [*self._model.named_parameters(), *(("the loss", one) for one in self._beside.values())]
        named += [("an input", one) for one in self._given() if one.is_leaf]
        named += [("the optimizer's", one) for one in trained_by(self._optimizer)]
        found = [(name, one.grad) for name, one in named if one.grad is not None]
        for name, gradient in found:
            if gradient.layout is not torch.strided:
                raise CaptureError(f"the gradient of {name} is sparse: how many bytes it has depends on the inputs")
        return [gradient for _, gradient in found]

    def _state(self) -> list[torch.Tensor]:
        return [] if self._optimizer is None else tensors_of(dict(self._optimizer.state))

    def _held(self) -> list[torch.Tensor]:
        """What is alive between the parts of a step."""
        return [*self._parameters(), *self._model.buffers(), *self._given(), *self._state(), *self._gradients()]


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """By the kernel of CUDA, which keeps a mask of one byte an element."""
    if not training or not 0 < p < 1 or inplace:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def _metered(held: Callable[[], list[torch.Tensor]]) -> Iterator[Meter]:
    with Meter() as meter:
        meter.count(held())
        yield meter


@contextmanager
def _told(model: torch.nn.Module) -> Iterator[None]:
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise looks_at_values(model, error) from None
