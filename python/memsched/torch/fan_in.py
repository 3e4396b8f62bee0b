"""Sums that autograd makes of the gradients of one tensor, where several operations used it.

Autograd adds each gradient that arrives to the sum so far: in place if nobody else holds the sum, but never under a
dispatch mode. Who counts bytes in such a mode can tell afterwards: nobody else held the sum so far if it died right
after the addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false


def current_node() -> int | None:
    """The autograd node whose backward is running; None outside of one, and in one that is written in Python."""
    node = torch._C._current_autograd_node()
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return None
    return int(node._sequence_nr())


def taker(func: Any, args: Sequence[Any], kwargs: Any) -> torch.Tensor | None:
    """The operand of an addition that could take its result in place, if it may be a sum of two gradients."""
    if func is not torch.ops.aten.add.Tensor or len(args) != 2 or kwargs:
        return None
    if torch.is_grad_enabled():  # autograd must be able to go back through the sum
        return None
    so_far, arriving = args
    if not (isinstance(so_far, torch.Tensor) and isinstance(arriving, torch.Tensor)):
        return None
    if so_far.shape != arriving.shape or so_far.dtype != arriving.dtype:
        return None
    if so_far._is_view():  # it holds what it is a view of, and with it the storage
        return None
    if so_far.untyped_storage()._cdata == arriving.untyped_storage()._cdata:
        return None
    return so_far if is_non_overlapping_and_dense_or_false(so_far) else None


def is_fan_in(node: int | None, makers: Sequence[int | None]) -> bool:
    """Whether an addition in a node is autograd's, given the nodes that made its operands, as far as they are known.

    An addition of two tensors that the same node made is one of that node's own. So is, to be careful, any addition in
    a node written in Python. One in a hook of a tensor is taken for autograd's.
    """
    return node is not None and any(maker != node for maker in makers)
