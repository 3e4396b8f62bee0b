"""Calls that a profile captures in place of a model's own: concatenations that grow, and kernels that CUDA would run.

The calls are replaced in what Dynamo captured, before AOTAutograd traces it: the backward follows by itself. On CPU
tensors without data the kernels of CUDA compute nothing, but say what they keep for their backward. Replaced are, after
torch 2.13's sources:

* `torch.cat`: cat([a, b, c]) becomes cat([cat([a, b]), c]) where cat([a, b]) was computed before. A dense block
  concatenates all that came before it in each of its layers, so that every layer's output lives to the end of the
  block, and nothing can be cut. Grown step by step, one tensor crosses from layer to layer. Values stay the same.
* `scaled_dot_product_attention`, for a machine: by the kernel that CUDA chooses for the compute capability, the types
  and the shapes. cuDNN's for float16 and bfloat16 from 9.0 (H100) on, masks included; flash attention for float16 and
  bfloat16 from 8.0 on without a mask; the memory-efficient one for the rest with as many key heads as query heads;
  otherwise plain matrix products, which keep all scores. A boolean mask becomes an additive one first, once a call; for
  the memory-efficient kernel a mask whose rows are not aligned to 8 elements is copied to one whose rows are. Where
  flash attention needs heads of a multiple of 8, query, key and value are padded.
* `rms_norm`, for a machine: by `native_layer_norm` without a bias. CUDA has one kernel that keeps the input and one
  number a row; the CPU decomposes. The replacement keeps two numbers a row.
* `log_sigmoid`, for a machine: by `softplus`, which keeps the input alone, as log_sigmoid does on CUDA.

Dropout needs nothing: AOTAutograd traces it as `native_dropout`, which keeps a mask of one byte an element, as on CUDA.
What stays although it differs: the reserve of cuDNN's batch norm; the statistics of norms of half precision, which CUDA
keeps in float32; ctc_loss; embedding_bag; and the lists of operations that autocast runs in float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)


Calls = dict[Any, Callable[..., Any]]
"""What to call in place of functions."""


def kernels_of(capability: tuple[int, int]) -> Calls:
    """Those that CUDA runs on a GPU of this compute capability (`Machine.capability`)."""

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _attention(capability, *args, **kwargs)

    return {
        functional.scaled_dot_product_attention: attention,
        functional.logsigmoid: aten.softplus.default,
        torch.rms_norm: _rms_norm,
    }


def substitute(module: fx.GraphModule, calls: Calls) -> None:
    """Replace calls in a graph that Dynamo captured, and in the graphs nested in it."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and node.target in calls:
                    node.target = calls[node.target]
            part.recompile()


def substitute_for_chains(module: fx.GraphModule, capability: tuple[int, int] | None = None) -> None:
    """Let concatenations grow from one another, and take the kernels of a GPU, if a compute capability is given."""
    share = _sharing()
    kernels = {} if capability is None else kernels_of(capability)
    substitute(module, {torch.cat: share, torch.concat: share, torch.concatenate: share, **kernels})


class Substituted(TorchFunctionMode):
    """Replaces the calls of what runs within it, and of what its backwards run again under `torch.utils.checkpoint`."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.autograd.backward:  # PyTorch puts the mode aside, and asks none about edges
            with self:
                return func([get_gradient_edge(one) for one in args[0]], **kwargs)
        return self._calls.get(func, func)(*args, **kwargs)


class _Grouped(torch.autograd.Function):
    """The bytes of a product of matrices in groups: the result, and what its backward reads and makes."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return input.new_empty(*input.shape[:-1], weight.shape[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, **more: Any) -> torch.Tensor:
    """`torch._grouped_mm`, to which others come, on tensors without data: PyTorch's own takes bfloat16 alone there."""
    plain = all(value is None for name, value in more.items() if name != "offs")
    experts = mat_a.dim() == 2 and mat_b.dim() == 3 and mat_a.dtype == mat_b.dtype
    if mat_a.dtype == torch.bfloat16 or not (plain and experts):
        return torch._grouped_mm(mat_a, mat_b, **more)
    found: torch.Tensor = _Grouped.apply(mat_a, mat_b)
    return found


def _sharing() -> Callable[..., torch.Tensor]:
    """A function that concatenates, from what it made of the first parts before if nothing changed since."""
    made: list[tuple[int, list[torch.Tensor], torch.Tensor, list[int]]] = []

    def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
        parts = list(tensors)
        for along, first, whole, versions in reversed(made):
            same = along == dim and len(first) < len(parts) and all(map(operator.is_, first, parts))
            if same and versions == [one._version for one in (*first, whole)]:
                found = torch.cat([whole, *parts[len(first) :]], dim)
                break
        else:
            found = torch.cat(parts, dim)
        made.append((dim, parts, found, [one._version for one in (*parts, found)]))
        return found

    return cat


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    mixed = weight is not None and weight.dtype != input.dtype
    if mixed or suggest_memory_format(input) is not torch.contiguous_format:
        return torch.rms_norm(input, normalized_shape, weight, eps)  # CUDA decomposes these, too
    return torch.native_layer_norm(input, normalized_shape, weight, None, 1e-5 if eps is None else eps)[0]


def _attention(
    capability: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    mask = attn_mask
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
    with torch.autocast("cpu", enabled=False):
        if mask is not None:
            mask = _additive_mask(mask, query.dtype)
        kernel = _kernel(capability, query, key, value, mask, dropout_p, is_causal, enable_gqa)
        if kernel == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if kernel == "math":
            return _plain(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
        fused = aten._scaled_dot_product_cudnn_attention.default
        if kernel == "efficient":
            fused = aten._scaled_dot_product_efficient_attention.default
            mask = _aligned_mask(mask, query, key) if mask is not None else None
        return fused(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]


def _kernel(
    capability: tuple[int, int],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """The kernel that CUDA chooses: the first that serves, of cuDNN's, flash, memory-efficient and plain products."""
    heads, head = (q.shape[1], k.shape[1], v.shape[1]), q.shape[-1]
    batches = {one.shape[0] for one in (q, k, v)}
    if not all(one.dim() == 4 and one.stride(-1) == 1 for one in (q, k, v)) or len(batches) > 1:
        return "math"
    if not enable_gqa and len(set(heads)) > 1:
        return "math"
    half = q.dtype in _HALVES
    cudnn = capability[0] in (9, 10) and half and (dropout_p * 16) % 1 == 0 and k.shape[2] != 1
    cudnn = cudnn and (mask is None or (mask.dim() in (2, 4) and not mask.requires_grad))
    cudnn = cudnn and all(size <= 128 and size % 8 == 0 for size in (head, v.shape[-1]))
    if cudnn and (not dropout_p or q.shape[2] != 1):
        return "cudnn"
    small = (8, 6) <= capability <= (8, 9) or capability[0] == 12  # less shared memory: no backward for some heads
    flash = mask is None and capability >= (8, 0) and half and head == k.shape[-1] == v.shape[-1] and head <= 256
    flash = flash and (not small or head <= 192 or (head > 224 and not dropout_p))
    if flash and (not is_causal or q.shape[-2] == k.shape[-2]):
        return "flash"
    types = (torch.float32, *_HALVES) if capability >= (8, 0) else (torch.float32, torch.float16)
    alignment = 8 if half and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    efficient = len(set(heads)) == 1 and capability >= (5, 0) and q.dtype in types and head == k.shape[-1]
    return "efficient" if efficient and head % alignment == v.shape[-1] % alignment == 0 else "math"


def _additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask as numbers to add to the scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    take, leave = (torch.scalar_tensor(x, dtype=dtype, device=mask.device) for x in (0.0, -math.inf))
    return torch.where(mask, take, leave)


def _aligned_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask whose rows begin at multiples of 8 elements, of the shape of all scores."""
    *outer, inner = mask.stride()
    if inner != 1 or any(stride % 8 for stride in outer):
        last = mask.shape[-1]
        mask = functional.pad(mask, [0, 8 - last % 8])[..., :last]
    return mask.expand(*query.shape[:3], key.shape[2])


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Flash attention, on heads that are padded to a multiple of 8."""
    head = query.shape[-1]
    if head % 8:
        scale = 1 / math.sqrt(head) if scale is None else scale
        query, key, value = (functional.pad(x, [0, 8 - head % 8]) for x in (query, key, value))
    flash = aten._scaled_dot_product_flash_attention.default
    return flash(query, key, value, dropout_p, is_causal, scale=scale)[0][..., :head]


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """Attention by matrix products, with CUDA's dropout of the scores."""
    kernel = aten._scaled_dot_product_attention_math.default
    out, scores = kernel(query, key, value, mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa)
    if not 0 < dropout_p < 1:
        return out
    scores = torch.native_dropout(scores, dropout_p, True)[0]
    repeats = query.shape[-3] // value.shape[-3] if enable_gqa else 1
    return torch.matmul(scores, value.repeat_interleave(repeats, -3) if repeats > 1 else value)
