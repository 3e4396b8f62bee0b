"""A captured program, changed so that on CPU tensors without data it saves for the backward what CUDA would save.

Some operations of torch keep other tensors for their backward on CUDA than on the CPU, because other kernels run. Fake
CUDA tensors would tell, but with autograd they abort a process whose torch has no CUDA. So `cuda_like` replaces these
operations by the ones that CUDA runs; their shapes, and the tensors that they save, are known on fake CPU tensors too.
The changed program is for counting bytes and kernels under FakeTensorMode only: its values are wrong, and most of the
kernels do not exist for the CPU.

What is replaced, in programs of torch.export (training, ATen before decomposition), after torch 2.13's sources:

* `dropout` in training with 0 < p < 1: by `native_dropout`, which keeps a mask of one byte an element. The CPU keeps
  the scaled mask in the type of its input.
* `scaled_dot_product_attention`: by the kernel that CUDA chooses for the compute capability, the types and the shapes.
  cuDNN's for float16 and bfloat16 from 9.0 (H100) on, masks included; flash attention for float16 and bfloat16 from 8.0
  on without a mask; the memory-efficient one for the rest with as many key heads as query heads; otherwise plain matrix
  products, which keep all scores. A boolean mask becomes an additive one first, as CUDA does it, once a call; for the
  memory-efficient kernel a mask whose rows are not aligned to 8 elements is copied to one whose rows are. Where flash
  attention needs heads of a multiple of 8, query, key and value are padded. Key heads that are fewer
  (enable_gqa) are left to cuDNN and flash; the memory-efficient kernel does not take them.
* `rms_norm`: by `native_layer_norm` without a bias. CUDA has one kernel that keeps the input and one number a row; the
  CPU decomposes. The replacement keeps two numbers a row.
* `log_sigmoid`: by `softplus`, which keeps the input alone, as log_sigmoid does on CUDA. The CPU keeps a second buffer.

What stays, because CUDA keeps the same bytes: `dropout_` in place, and feature and alpha dropout (CUDA's fused dropout
serves none of them), convolution, linear, layer, group and instance norms, pooling, embedding, activations, softmax
and the losses. What stays although it differs: the reserve of cuDNN's batch norm (only cuDNN knows its size); the
statistics of norms of half precision, which CUDA keeps in float32; LSTM, GRU and their cells; ctc_loss; embedding_bag;
and the lists of operations that autocast runs in float32, which differ between CPU and CUDA and are settled when the
program is captured.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._prims_common import suggest_memory_format

from memsched.errors import InvalidInputError

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)


def cuda_like(module: fx.GraphModule, *, capability: tuple[int, int] = (8, 0)) -> int:
    """Replace, in place, the operations that save other bytes for the backward on CUDA than on the CPU.

    Parameters
    ----------
    module : torch.fx.GraphModule
        Of torch.export, with what each node computes in node.meta["val"]. Graphs nested in it are changed too.
    capability : tuple of int
        The compute capability of the GPU (`Machine.capability`): the kernel of attention depends on it.

    Returns
    -------
    int
        How many operations were replaced.

    Raises
    ------
    InvalidInputError
        The module is not a graph, or a node that has to be looked at lacks its meta "val".

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from memsched.torch.cuda_like import cuda_like
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    >>> program = torch.export.export(model, (torch.ones(2, 4),), strict=False).module(check_guards=False)
    >>> cuda_like(program)
    1
    """
    if not isinstance(module, fx.GraphModule):
        raise InvalidInputError(
            f"the module is a {type(module).__name__}; give torch.export.export(model, args).module(check_guards=False)"
        )
    replaced = 0
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in list(part.graph.nodes):
            rule = _RULES.get(node.target) if node.op == "call_function" else None
            if rule is not None:
                replaced += _replace(node, rule, capability)
        part.recompile()
    return replaced


def _replace(node: fx.Node, rule: Callable[..., fx.Node | None], capability: tuple[int, int]) -> bool:
    """Apply a rule to a node; False where the node may stay as it is."""
    emit = _Emitter(node, capability)
    with node.graph.inserting_before(node):
        new = rule(emit, **_arguments(node))
    if new is None:
        return False
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
    return True


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by their names in the schema, defaults included."""
    declared = node.target._schema.arguments
    given = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    given.update(zip((argument.name for argument in declared), node.args, strict=False))
    given.update(node.kwargs)
    return given


def _value(node: fx.Node) -> Any:
    """What a node computes, without data."""
    if "val" not in node.meta:
        raise InvalidInputError(
            f"node {node.name!r} has no meta 'val'; give a module of torch.export, whose nodes all have one"
        )
    return node.meta["val"]


class _Emitter:
    """Writes new nodes in place of an old one, and keeps their meta "val" right."""

    def __init__(self, old: fx.Node, capability: tuple[int, int]) -> None:
        self.value = _value(old)
        self.capability = capability
        self._graph = old.graph
        self._meta = {key: entry for key, entry in old.meta.items() if key != "val"}

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of `target`."""
        node = self._graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), _value)
        with self.value.fake_mode, torch.no_grad():
            node.meta = {**self._meta, "val": target(*values[0], **values[1])}
        return node

    def first(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """The first of the results of a call of `target`."""
        return self(operator.getitem, self(target, *args, **kwargs), 0)

    def cast(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """The node in another type; itself where it has that type."""
        return node if _value(node).dtype == dtype else self(aten.to.dtype, node, dtype)

    def size(self, node: fx.Node, dim: int) -> Any:
        """A size of a node, as a number or as the node that computes it."""
        size = _value(node).shape[dim]
        return size if isinstance(size, int) else self(aten.sym_size.int, node, dim)


def _dropout(emit: _Emitter, *, input: fx.Node, p: float, train: bool) -> fx.Node | None:
    return emit.first(aten.native_dropout.default, input, p, True) if train and 0 < p < 1 else None


def _log_sigmoid(emit: _Emitter, *, self: fx.Node) -> fx.Node:
    return emit(aten.softplus.default, self)


def _rms_norm(
    emit: _Emitter, *, input: fx.Node, normalized_shape: Any, weight: fx.Node | None, eps: float | None
) -> fx.Node | None:
    value = _value(input)
    mixed = weight is not None and _value(weight).dtype != value.dtype
    if mixed or suggest_memory_format(value) is not torch.contiguous_format:
        return None  # CUDA decomposes these, too
    return emit.first(
        aten.native_layer_norm.default, input, normalized_shape, weight, None, 1e-5 if eps is None else eps
    )


def _attention(
    emit: _Emitter,
    *,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    attn_mask: fx.Node | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> fx.Node:
    # Under autocast the call itself casts its arguments: the type of its result is the one that the kernel sees.
    dtype = emit.value.dtype
    query, key, value = (emit.cast(node, dtype) for node in (query, key, value))
    mask = _additive_mask(emit, attn_mask, dtype) if attn_mask is not None else None
    q, k, v = _value(query), _value(key), _value(value)
    if _fits_all(q, k, v, enable_gqa):
        if _fits_cudnn(q, k, v, mask, dropout_p, emit.capability):
            return emit.first(
                aten._scaled_dot_product_cudnn_attention.default,
                *(query, key, value, mask, True, dropout_p, is_causal),
                scale=scale,
            )
        if mask is None and _fits_flash(q, k, v, dropout_p, is_causal, emit.capability):
            return _flash(emit, query, key, value, dropout_p, is_causal, scale)
        if q.shape[1] == k.shape[1] == v.shape[1] and _fits_efficient(q, k, v, emit.capability):
            bias = _aligned_mask(emit, mask, query, key) if mask is not None else None
            return emit.first(
                aten._scaled_dot_product_efficient_attention.default,
                *(query, key, value, bias, True, dropout_p, is_causal),
                scale=scale,
            )
    return _plain(emit, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


def _fits_all(q: Any, k: Any, v: Any, enable_gqa: bool) -> bool:
    """Whether any fused kernel may run: four dimensions, one batch size, matching heads, elements side by side."""
    if not all(tensor.dim() == 4 and tensor.stride(-1) == 1 for tensor in (q, k, v)):
        return False
    heads = {int(k.shape[1]), int(v.shape[1])}
    return bool(q.shape[0] == k.shape[0] == v.shape[0]) and (enable_gqa or heads == {q.shape[1]})


def _fits_cudnn(q: Any, k: Any, v: Any, mask: fx.Node | None, dropout_p: float, capability: tuple[int, int]) -> bool:
    """Whether CUDA chooses cuDNN's kernel, which comes first on Hopper and Blackwell."""
    if capability[0] not in (9, 10) or q.dtype not in _HALVES or (dropout_p * 16) % 1:
        return False
    if mask is not None and (_value(mask).dim() not in (2, 4) or _is_learned(mask)):
        return False
    heads_fit = all(size <= 128 and size % 8 == 0 for size in (q.shape[-1], v.shape[-1]))
    return heads_fit and k.shape[2] != 1 and (not dropout_p or q.shape[2] != 1)


def _is_learned(node: fx.Node) -> bool:
    """Whether a node depends on a parameter that needs a gradient; the values of a captured program do not tell."""
    seen, todo = set[fx.Node](), [node]
    while todo:
        current = todo.pop()
        if current.op == "get_attr":
            owner = current.graph.owning_module
            if getattr(operator.attrgetter(current.target)(owner), "requires_grad", False):
                return True
        new = [one for one in current.all_input_nodes if one not in seen]
        seen.update(new)
        todo += new
    return False


def _fits_flash(q: Any, k: Any, v: Any, dropout_p: float, is_causal: bool, capability: tuple[int, int]) -> bool:
    """Whether flash attention runs, which CUDA chooses next."""
    head = q.shape[-1]
    if capability < (8, 0) or q.dtype not in _HALVES or not head == k.shape[-1] == v.shape[-1] or head > 256:
        return False
    if is_causal and q.shape[-2] != k.shape[-2]:
        return False
    small = (8, 6) <= capability <= (8, 9) or capability[0] == 12  # less shared memory: no backward for some heads
    return not small or head <= 192 or (head > 224 and not dropout_p)


def _fits_efficient(q: Any, k: Any, v: Any, capability: tuple[int, int]) -> bool:
    """Whether the memory-efficient kernel runs, CUDA's third choice."""
    types = (torch.float32, *_HALVES) if capability >= (8, 0) else (torch.float32, torch.float16)
    if capability < (5, 0) or q.dtype not in types:
        return False
    alignment = 8 if q.dtype in _HALVES and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    head, last = q.shape[-1], v.shape[-1]
    return head == k.shape[-1] and head % alignment == 0 and last % alignment == 0


def _additive_mask(emit: _Emitter, mask: fx.Node, dtype: torch.dtype) -> fx.Node:
    """A boolean mask as numbers to add to the scores."""
    if _value(mask).dtype != torch.bool:
        return emit.cast(mask, dtype)
    device = _value(mask).device
    take, leave = (emit(aten.scalar_tensor.default, x, dtype=dtype, device=device) for x in (0.0, -math.inf))
    return emit(aten.where.self, mask, take, leave)


def _aligned_mask(emit: _Emitter, mask: fx.Node, query: fx.Node, key: fx.Node) -> fx.Node:
    """A mask whose rows begin at multiples of 8 elements, of the shape of all scores."""
    *outer, inner = _value(mask).stride()
    if inner != 1 or any(stride % 8 for stride in outer):
        last = emit.size(mask, -1)
        missing = 8 - _value(mask).shape[-1] % 8
        mask = emit(aten.slice.Tensor, emit(aten.constant_pad_nd.default, mask, [0, missing]), -1, 0, last)
    sizes = [emit.size(query, 0), emit.size(query, 1), emit.size(query, 2), emit.size(key, 2)]
    return emit(aten.expand.default, mask, sizes)


def _flash(
    emit: _Emitter, query: fx.Node, key: fx.Node, value: fx.Node, dropout_p: float, is_causal: bool, scale: Any
) -> fx.Node:
    """Flash attention, on heads that are padded to a multiple of 8."""
    head = _value(query).shape[-1]
    if head % 8:
        scale = 1 / math.sqrt(head) if scale is None else scale
        query, key, value = (emit(aten.constant_pad_nd.default, x, [0, 8 - head % 8]) for x in (query, key, value))
    flash = aten._scaled_dot_product_flash_attention.default
    out = emit.first(flash, query, key, value, dropout_p, is_causal, scale=scale)
    return emit(aten.slice.Tensor, out, -1, 0, head) if head % 8 else out


def _plain(
    emit: _Emitter,
    query: fx.Node,
    key: fx.Node,
    value: fx.Node,
    mask: fx.Node | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> fx.Node:
    """Attention by matrix products, with CUDA's dropout of the scores."""
    kernel = aten._scaled_dot_product_attention_math.default
    both = emit(kernel, query, key, value, mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa)
    if not 0 < dropout_p < 1:
        return emit(operator.getitem, both, 0)
    scores = emit.first(aten.native_dropout.default, emit(operator.getitem, both, 1), dropout_p, True)
    repeats = _value(query).shape[-3] // _value(value).shape[-3] if enable_gqa else 1
    if repeats > 1:
        value = emit(aten.repeat_interleave.self_int, value, repeats, -3)
    return emit(aten.matmul.default, scores, value)


_RULES: dict[Any, Callable[..., fx.Node | None]] = {
    aten.dropout.default: _dropout,
    aten.scaled_dot_product_attention.default: _attention,
    aten.rms_norm.default: _rms_norm,
    aten.log_sigmoid.default: _log_sigmoid,
}
