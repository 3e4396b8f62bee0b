"""How results lie in memory: as PyTorch traced them, also where their kernels write them otherwise.

What is traced follows from the traced strides: which calls of `contiguous` do nothing, which reshapes are views. Some
kernels are told nothing more, and take what they read to lie so; the backward of group normalisation is one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.private import hint_of
from memsched.torch.nests import tensors_of


def order_of(example: object) -> tuple[int, ...] | None:
    """The dimensions of a traced tensor, those with the largest strides first.

    None where it has gaps or repeats elements, has one element, or is no tensor of known sizes.
    """
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return None
    sizes, strides = ([hint_of(one) for one in given] for given in (example.shape, example.stride()))
    if not all(isinstance(one, int) for one in (*sizes, *strides)):
        return None
    order = tuple(sorted(range(len(sizes)), key=lambda k: (-strides[k], k)))
    return order if max(sizes, default=1) > 1 and lies_in(order, sizes, strides) else None


def lies_in(order: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after another in this order of dimensions."""
    step = 1
    for k in reversed(order):
        if sizes[k] > 1 and strides[k] != step:
            return False
        step *= sizes[k]
    return True


def laid(
    value: torch.Tensor, order: tuple[int, ...], strides: tuple[int, ...] | None = None, drawn: str = ""
) -> torch.Tensor:
    """A value in an order of its dimensions: itself, as it is at once where it has the strides, or a copy.

    `drawn` is what made it, if random operations follow.
    """
    if value.stride() == strides or lies_in(order, value.shape, value.stride()) or value.numel() == 0:
        return value
    if drawn:
        _tell(drawn)
    return torch.empty_permuted(value.shape, order, dtype=value.dtype, device=value.device).copy_(value)


@functools.cache
def _tell(made: str) -> None:
    warnings.warn(
        f"{made} writes its result in another order of dimensions than PyTorch traced; random operations after it may "
        "draw other numbers than in plain PyTorch",
        stacklevel=1,
    )


def _rolled(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """What the CPU's kernel does, whose result PyTorch traces as if it had the order of the dimensions."""
    if x.device.type != "cpu":
        return NotImplemented
    if x.numel() == 0:
        return x.clone()
    if not dims:
        return _rolled(x.contiguous().view(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = (size - shift) % size
        x = torch.cat([x.narrow(dim, start, size - start), x.narrow(dim, 0, start)], dim)
    return x


AS_KERNELS: dict[Any, Any] = {torch.ops.aten.roll.default: _rolled}
"""Operations whose results would be traced in another order, as those of which they consist."""

_IN_ROWS = ("mm", "addmm", "bmm", "baddbmm", "linear", "embedding")  # whatever the order of what they read


def drawn_from(graph: fx.Graph, draws: set[fx.Node]) -> set[Any]:
    """What random operations read, by whatever way on which an order of dimensions may stay."""
    found: set[Any] = set()
    for node in reversed(graph.nodes):
        keeps = getattr(node.target, "_opname", "") not in _IN_ROWS
        if node in draws or (node in found and keeps):
            found.update(node.all_input_nodes)
    return found


def otherwise(traced: object, found: object) -> int:
    """Bytes of an operation's results that lie otherwise than traced."""
    pairs = zip(tensors_of(traced), tensors_of(found), strict=False)
    orders = ((order_of(example), real) for example, real in pairs)
    return sum(real.nbytes for order, real in orders if order is not None and laid(real, order) is not real)
