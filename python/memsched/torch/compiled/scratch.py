"""What convolutions on a CPU allocate and give back, measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.torch.meter import Meter, with_workspace
from memsched.torch.nests import tensors_of

Scratch = Mapping[Hashable, int]
"""Bytes of convolutions, by what `told` tells of them."""

_SIZED = {torch.ops.aten.convolution.default: 2, torch.ops.aten.convolution_backward.default: 3}
"""Convolutions, with how many of their arguments decide how much they do: compiled code passes others than traced."""
_KNOWN: dict[Hashable, int] = {}


def told(func: Any, args: Any) -> Hashable:
    """What convolutions that are alike in traced and in compiled code have in common; None: it is no convolution."""
    if func not in _SIZED:
        return None
    return func, *(tuple(map(int, one.shape)) for one in args[: _SIZED[func]])


class CodeMeter(Meter):
    """A meter of tensors without data that also counts the scratch memory of convolutions on a CPU.

    That depends on the kernel that PyTorch chooses, by sizes, strides and processor, and may be larger than all that
    the convolution reads. Each kind runs twice, on made-up values. `found` is the most of those that are alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Hashable, int] = {}

    def scratch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> int:
        """See `Meter.scratch`."""
        known, kind = super().scratch(func, args, kwargs), told(func, args)
        if kind is None or any(one.device.type != "cpu" for one in tensors_of(args)):
            return known
        given = pytree.tree_map(self._like, args)
        key = func, repr(given)
        if key not in _KNOWN:
            _KNOWN[key] = _measured(func, given)
        self.found[kind] = max(self.found.get(kind, 0), _KNOWN[key])
        return max(known, _KNOWN[key])

    def _like(self, one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return int(one) if isinstance(one, torch.SymInt) else one
        return _Like([int(size) for size in one.shape], [int(stride) for stride in one.stride()], one.dtype)


class _Like:
    """A tensor's sizes, strides and type."""

    def __init__(self, shape: list[int], stride: list[int], dtype: torch.dtype) -> None:
        self.shape, self.stride, self.dtype = shape, stride, dtype

    def __repr__(self) -> str:
        return f"{self.shape} {self.stride} {self.dtype}"


def _measured(func: Any, given: Any) -> int:
    def made(one: Any) -> Any:
        return torch.empty_strided(one.shape, one.stride, dtype=one.dtype) if isinstance(one, _Like) else one

    def measure() -> int:
        args = pytree.tree_map(made, given)
        func(*args)  # libraries have their memory then
        return with_workspace(lambda: func(*args))[1]

    with ThreadPoolExecutor(1) as thread:  # in which there is neither a mode nor the caller's profiler
        return thread.submit(measure).result()
