"""The tensors among the arguments of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.torch.leaves import distinct


def replaced(args: Any, change: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]) -> Any:
    """The arguments with their distinct tensors changed; what was one tensor still is."""
    leaves, spec = pytree.tree_flatten(args)
    tensors, which = distinct(leaves)
    changed = change(tensors)
    place = iter(which)
    return pytree.tree_unflatten([changed[next(place)] if isinstance(x, torch.Tensor) else x for x in leaves], spec)


def own_inputs(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that the step takes over: copies of those whose storage is not theirs alone.

    So an input that leaves, comes back or is dropped takes nothing else along.
    """
    uses = Counter(tensor.untyped_storage()._cdata for tensor in tensors)
    owned = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        alone = uses[storage._cdata] == 1 and storage.nbytes() == tensor.numel() * tensor.itemsize
        owned.append(tensor.detach() if alone and not tensor.is_conj() else tensor.detach().clone())
    return owned
