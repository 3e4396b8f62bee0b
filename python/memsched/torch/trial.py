"""Training steps that leave no trace: for measuring a plan, and for comparing it with plain autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.errors import MemschedError
from memsched.torch.random_state import random_state, set_random_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one training step computed.

    Attributes
    ----------
    outputs : list of (Tensor or None)
        None where it is not to be compared.
    gradients : dict of str to (Tensor or None)
        Of the parameters that need one, and of the inputs that do ("input 0", ...).
    buffers : dict of str to Tensor
        After the step.
    random : list of Tensor
        The states of the generators after the step.
    """

    outputs: list[torch.Tensor | None]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    random: list[torch.Tensor]

    def without_noise(self, again: Step) -> Step:
        """The step less what another run of the same step computed otherwise."""
        return Step(
            outputs=[a if _identical(a, b) else None for a, b in zip(self.outputs, again.outputs, strict=True)],
            gradients={name: g for name, g in self.gradients.items() if _identical(g, again.gradients[name])},
            buffers={name: b for name, b in self.buffers.items() if _identical(b, again.buffers[name])},
            random=self.random,
        )


@contextlib.contextmanager
def untouched(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Puts the model's buffers and the generators back at the end."""
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    states = random_state(device)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        set_random_state(device, states)


def trial_step(
    model: torch.nn.Module,
    forward: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    device: torch.device,
) -> Step:
    """Forward and backward with random gradients of the results, the same at each call. `.grad` is not written.

    Raises
    ------
    MemschedError
        No result needs a gradient.
    """
    outputs = [leaf for leaf in pytree.tree_leaves(forward(*args, **(kwargs or {}))) if isinstance(leaf, torch.Tensor)]
    differentiable = [value for value in outputs if value.requires_grad]
    if not differentiable:
        raise MemschedError("no result of the model needs a gradient; there is no training step to try")
    seeded = torch.Generator(device=device).manual_seed(0)
    arriving = [torch.randn(v.shape, dtype=v.dtype, device=v.device, generator=seeded) for v in differentiable]
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    sources = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sources |= {f"input {k}": leaf for k, leaf in enumerate(leaves) if leaf.requires_grad}
    found = torch.autograd.grad(differentiable, list(sources.values()), arriving, allow_unused=True)
    return Step(
        outputs=[value.detach() for value in outputs],
        gradients=dict(zip(sources, found, strict=True)),
        buffers={name: buffer.detach().clone() for name, buffer in model.named_buffers()},
        random=random_state(device),
    )


def first_difference(expected: Step, found: Step) -> str | None:
    """The first tensor that is not equal bit for bit, in words; None where all are."""
    groups: list[tuple[str, dict[str, torch.Tensor | None], dict[str, torch.Tensor | None]]] = [
        ("output", _numbered(expected.outputs), _numbered(found.outputs)),
        ("gradient of", expected.gradients, found.gradients),
        ("buffer", dict(expected.buffers), dict(found.buffers)),
        ("random number generator", _numbered(expected.random), _numbered(found.random)),
    ]
    for what, wanted, got in groups:
        for name, tensor in wanted.items():
            if not _identical(tensor, got.get(name)):
                return f"{what} {name}"
    return None


def _numbered(tensors: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    return {str(k): tensor for k, tensor in enumerate(tensors) if tensor is not None}


def _identical(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Equal bit for bit; NaN equals the same NaN."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)))
