"""What occupies the device through the whole step, whatever the plan."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from memsched.errors import InvalidInputError
from memsched.support import checks
from memsched.torch.facts import fake_copy, fake_mode
from memsched.torch.meter import Meter
from memsched.torch.stage_bytes import ModelBytes, distinct_bytes
from memsched.torch.stage_run import enter
from memsched.torch.stage_walk import Walk
from memsched.torch.stages import StagedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Bytes that no plan moves, by what they are for.

    Attributes
    ----------
    parameters, buffers, gradients, optimizer : int
        Of the model and its optimiser. A parameter that is frozen has no gradient.
    inputs, outputs : int
        Of the arguments, and of the results with their gradients: the caller holds them.
    input_gradients : int
        Of the inputs that need a gradient.
    environment : int
        Values that pass beside the chain, such as masks.
    loss : int
        What the loss function needs on top of the results and their gradients.
    repeated : int
        Scratch for what repeated runs would write twice, such as running statistics.
    shared_gradients : int
        Gradients of tied weights: autograd holds the first while it waits for the last.
    reserve : int
        Workspaces of libraries, and what the allocator loses.
    """

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    inputs: int
    outputs: int
    input_gradients: int
    environment: int
    loss: int
    repeated: int
    shared_gradients: int
    reserve: int

    @property
    def total(self) -> int:
        """All together."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Each part by name."""
        return dataclasses.asdict(self)


def resident_of(found: ModelBytes, *, optimizer: int, loss: int, reserve: int) -> Resident:
    """The split for a model whose bytes were measured."""
    return Resident(
        parameters=found.parameters,
        buffers=found.buffers,
        gradients=found.gradients,
        optimizer=optimizer,
        inputs=found.inputs,
        outputs=sum(stage.outputs + stage.output_gradients for stage in found.stages),
        input_gradients=found.input_gradients,
        environment=sum(stage.exports for stage in found.stages),
        loss=loss,
        repeated=found.scratch,
        shared_gradients=found.shared_gradients,
        reserve=reserve,
    )


def optimizer_bytes(optimizer: torch.optim.Optimizer | int | None, device: torch.device) -> int:
    """Bytes of the optimiser's state on the device.

    Parameters
    ----------
    optimizer
        Its state is measured if it has stepped already; else one step of its like is made on parameters without data.
        A number is taken as declared; None means no optimiser.

    Raises
    ------
    InvalidInputError
        A number that is no number of bytes, or an optimiser that cannot be tried.
    """
    if optimizer is None:
        return 0
    if not isinstance(optimizer, torch.optim.Optimizer | int):
        raise InvalidInputError(
            f"optimizer is {optimizer!r}; give a torch.optim.Optimizer, or the bytes of its state as a number"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        return checks.count("optimizer", optimizer, 0, 2**63 - 1)
    state = [leaf for leaf in pytree.tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)]
    if not state:
        state = _state_after_one_step(optimizer)
    return distinct_bytes([tensor for tensor in state if tensor.device.type == device.type])


def _state_after_one_step(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake:
            groups = []
            for group in optimizer.param_groups:
                like = [torch.nn.Parameter(torch.empty_like(fake_copy(fake, p))) for p in group["params"]]
                for parameter in like:
                    parameter.grad = torch.empty_like(parameter)
                groups.append({**group, "params": like})
            trial = copy.copy(optimizer)
            trial.param_groups, trial.state = groups, defaultdict(dict)
            trial.step()
    except Exception as error:
        raise InvalidInputError(
            f"the state of {type(optimizer).__name__} cannot be measured before its first step ({error}); "
            "step it once, or give its bytes as a number: optimizer=..."
        ) from error
    return [leaf for leaf in pytree.tree_leaves(dict(trial.state)) if isinstance(leaf, torch.Tensor)]


def loss_bytes(
    loss: Callable[[Any], torch.Tensor] | None,
    staged: StagedModel,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> int:
    """Bytes that a loss needs beside the model's results and their gradients, counted on tensors without data.

    Parameters
    ----------
    loss
        Takes the model's result and returns a scalar; None for no loss.
    staged, model, args, kwargs
        As they were captured.

    Raises
    ------
    InvalidInputError
        The loss does not return one number, or reads values of tensors.
    """
    if loss is None:
        return 0
    leaves, state = pytree.tree_leaves((tuple(args), dict(kwargs or {}))), staged.fetch_state(model)
    fake = fake_mode([*leaves, *state.values()])
    with fake, torch.enable_grad():
        walk = Walk(
            staged,
            [fake_copy(fake, leaf) for leaf in leaves],
            {name: fake_copy(fake, value) for name, value in state.items()},
        )
        for stage in staged.stages:
            walk.leave(stage, walk.forward(stage, saving=False))
        try:
            return count_loss(loss, walk.result(), staged.device)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise InvalidInputError(
                f"loss reads values of tensors ({error.func}), which are not known while its bytes are counted; "
                "compute with tensors only, or leave loss out and add what it needs to reserve=..."
            ) from None


def count_loss(loss: Callable[[Any], torch.Tensor], result: Any, device: torch.device) -> int:
    """Bytes on a device that a loss needs beside a result of the model and its gradients.

    Raises
    ------
    InvalidInputError
        The loss does not return one number.
    """
    if not callable(loss):
        raise InvalidInputError(f"loss is {loss!r}; it must be a function that takes the model's result")
    result = pytree.tree_map(lambda leaf: enter(leaf) if _is_differentiable(leaf) else leaf, result)
    sources = [get_gradient_edge(leaf) for leaf in pytree.tree_leaves(result) if _is_differentiable(leaf)]
    with Meter(device.type) as meter, torch.enable_grad():
        value = loss(result)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise InvalidInputError(f"loss returns {value!r}; it must return one number as a tensor")
        gradients = torch.autograd.grad(value, sources, allow_unused=True) if sources and value.requires_grad else ()
        return max(0, meter.peak - distinct_bytes(gradients))


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
