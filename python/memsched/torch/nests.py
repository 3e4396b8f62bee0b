"""The tensors in what models take and return."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils import _pytree as pytree


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a nest of containers, data classes among them, in order.

    Examples
    --------
    >>> leaves_of({"a": 1, "b": (2, [3])})
    [1, 2, 3]
    """
    found: list[Any] = []
    for leaf in pytree.tree_leaves(value):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += leaves_of([getattr(leaf, one.name) for one in dataclasses.fields(leaf)])
        else:
            found.append(leaf)
    return found


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors among them."""
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor)]
