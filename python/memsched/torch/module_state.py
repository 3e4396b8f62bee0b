"""What modules hold: where their tensors are, and their attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def named_places(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every place that holds a parameter or a buffer, once: a module that stands in several places has one name.

    Where `functional_call` is given two names of one place, it leaves what it put there.
    """
    for path, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Gives modules their attributes back: some keep tensors, tables or lists of weights that a forward replaces."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)
