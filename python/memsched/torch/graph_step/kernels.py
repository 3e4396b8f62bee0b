"""Operations that a traced step has in the place of ATen's: each makes new tensors and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def filled(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device, value: Any
) -> torch.Tensor:
    """A tensor that holds one value; with None it holds anything.

    Examples
    --------
    >>> filled((2,), (1,), torch.float32, torch.device("cpu"), 3)
    tensor([3., 3.])
    """
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return made if value is None else made.fill_(value)


def drawn(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device, fill: Any, *args: Any
) -> torch.Tensor:
    """A tensor that an operation in place, such as `aten.bernoulli_.float`, fills with random numbers."""
    return fill(torch.empty_strided(shape, strides, dtype=dtype, device=device), *args)


def laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with these strides and a storage of its own.

    Examples
    --------
    >>> laid_out(torch.ones(2, 3), (1, 2)).stride()
    (1, 2)
    """
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def with_statistics(norm: Any, places: Sequence[int], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Batch normalisation that returns its new running statistics after its results, and leaves the old ones alone.

    Parameters
    ----------
    norm : OpOverload
        Writes to some of its arguments, though its schema does not say so.
    places : sequence of int
        Where these arguments stand.
    """
    copies = [args[place].clone() for place in places]
    given = list(args)
    for place, copy in zip(places, copies, strict=True):
        given[place] = copy
    return (*norm(*given, **kwargs), *copies)
