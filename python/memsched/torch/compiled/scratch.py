"""What convolutions on a CPU allocate and give back, measured."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils import _pytree as pytree

from memsched.torch.meter import Meter, with_workspace
from memsched.torch.nests import tensors_of

_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
_KNOWN: dict[Hashable, int] = {}


class CodeMeter(Meter):
    """A meter of tensors without data that also counts the scratch memory of convolutions on a CPU.

    That depends on the kernel that PyTorch chooses, by sizes, strides and processor, and may be larger than all that
    the convolution reads. Each kind runs twice, on made-up values.
    """

    def scratch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> int:
        """See `Meter.scratch`."""
        known = super().scratch(func, args, kwargs)
        if func not in _CONVOLUTIONS or any(one.device.type != "cpu" for one in tensors_of(args)):
            return known
        given = pytree.tree_map(self._like, args)
        key = func, repr(given)
        if key not in _KNOWN:
            _KNOWN[key] = _measured(func, given)
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
