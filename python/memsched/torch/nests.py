"""The tensors in what models take and return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
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


def memory_of(tensor: torch.Tensor) -> int:
    """What two tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of a nest with other tensors in it.

    Examples
    --------
    >>> with_tensors({"a": torch.ones(2), "b": 1}, torch.neg)
    {'a': tensor([-1., -1.]), 'b': 1}
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        made = copy.copy(leaf)
        for one in dataclasses.fields(leaf):
            object.__setattr__(made, one.name, with_tensors(getattr(leaf, one.name), change))
        return made

    return pytree.tree_map(changed, value)
