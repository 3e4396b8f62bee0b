"""Dropout and attention as CUDA runs them, while a model runs on CPU tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class CudaKernels(TorchFunctionMode):
    """Replaces the two operations of the shipped networks that save other bytes on CUDA than on the CPU.

    `memsched.torch.cuda_like` does the same, and much more, to captured programs; a recorded step is no such program.
    The V100 has the memory-efficient attention for float32; masks and grouped heads are not in these networks.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if inplace or not training or not 0 < p < 1:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if attn_mask is not None or enable_gqa:
        raise NotImplementedError("attention with a mask or with grouped heads: choose its CUDA kernel here first")
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, None, True, dropout_p, is_causal, scale=scale)[0]
