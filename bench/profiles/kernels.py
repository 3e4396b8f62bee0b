"""Dropout and attention as CUDA runs them, while a model runs on CPU tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_FLOAT32 = {  # what CUDA's autocast computes in float32 and the CPU's does not, of what the shipped networks have
    *(functional.layer_norm, functional.group_norm, functional.cross_entropy, functional.mse_loss),
    *(functional.softplus, functional.binary_cross_entropy_with_logits),
}


class CudaKernels(TorchFunctionMode):
    """Replaces the operations of the shipped networks that save other bytes on CUDA than on the CPU.

    `memsched.torch.substitutes` does the same, and more, to captured steps; a recorded step is no such step.
    Attention in float32 is the memory-efficient one, in bfloat16 flash attention, which takes grouped heads. Under the
    CPU's autocast, what CUDA's runs in float32 does so here. RMSNorm, which decomposes on the CPU, is a layer norm
    without bias.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is functional.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func in _FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
        return func(*args, **kwargs)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


def _rms_norm(input: torch.Tensor, shape: Any, weight: torch.Tensor | None = None, eps: float | None = None) -> Any:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return torch.native_layer_norm(input, list(shape), weight, None, eps)[0]


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
    half = query.dtype is torch.bfloat16
    if attn_mask is not None or (enable_gqa and not half):
        raise NotImplementedError("attention with a mask, or grouped in float32: choose its CUDA kernel here first")
    if half:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        return kernel(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, None, True, dropout_p, is_causal, scale=scale)[0]
