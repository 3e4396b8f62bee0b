"""Cheaper calls with the same results: PyTorch's own Python bindings, and no views that change nothing.

A call of `torch.ops.aten.mm.default` costs a microsecond of Python more than one of `torch.mm`, which on small tensors
is as much as the operation. Both reach the same kernel.

AOTAutograd traces dropout as `native_dropout`, whose kernel on the CPU turns the mask into numbers in memory of its own
each time that it multiplies, and takes up to 1.4 of the time of plain dropout. To multiply in place is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: torch.add,
    _aten.addmm.default: torch.addmm,
    _aten.bmm.default: torch.bmm,
    _aten.cat.default: torch.cat,
    _aten.convolution.default: torch.convolution,
    _aten.detach.default: torch.detach,
    _aten.div.Tensor: torch.div,
    _aten.embedding.default: torch.embedding,
    _aten.gelu.default: torch._C._nn.gelu,
    _aten.mm.default: torch.mm,
    _aten.mul.Tensor: torch.mul,
    _aten.native_layer_norm.default: torch.native_layer_norm,
    _aten.neg.default: torch.neg,
    _aten.permute.default: torch.permute,
    _aten.relu.default: torch.relu,
    _aten.rsqrt.default: torch.rsqrt,
    _aten.silu.default: torch._C._nn.silu,
    _aten.sub.Tensor: torch.sub,
    _aten.sum.dim_IntList: torch.sum,
    _aten.t.default: torch.t,
    _aten.transpose.int: torch.transpose,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.where.self: torch.where,
}
_EXACT = (torch.float32, torch.float64)  # in which a number is rounded alike by all ways to multiply by it


def dropout(
    x: torch.Tensor, p: float, train: bool | None, *, generator: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `native_dropout`, which takes no generator, computes on the CPU from the same random numbers."""
    if train is False or x.numel() == 0:
        return _aten.native_dropout.default(x, p, train)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - p, generator=generator)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    if x.dtype not in _EXACT or not x.is_contiguous():
        return x.mul(mask).mul_(torch.tensor(scale, dtype=x.dtype)), mask
    return mask.to(x.dtype).mul_(x).mul_(scale), mask


def dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """What `native_dropout_backward` computes on the CPU."""
    if gradient.dtype not in _EXACT or not gradient.is_contiguous() or not mask.is_contiguous():
        return _aten.native_dropout_backward.default(gradient, mask, scale)
    return mask.to(gradient.dtype).mul_(gradient).mul_(scale)


_ON_CPU: dict[Any, Callable[..., Any]] = {
    _aten.native_dropout.default: dropout,
    _aten.native_dropout_backward.default: dropout_backward,
}
_METHODS = {_aten.view.default: "view", _aten.expand.default: "expand"}
_TWICE_IS_NOTHING = (_aten.t.default, _aten.transpose.int)


def bound(node: fx.Node) -> Callable[..., Any]:
    """What generated code calls for an operation."""
    target: Any = node.target
    if target in _ON_CPU:
        example = node.args[0].meta.get("val") if isinstance(node.args[0], fx.Node) else None
        if isinstance(example, torch.Tensor) and example.device.type == "cpu":
            return _ON_CPU[target]
    return _FUNCTIONS.get(target, target)


def cheapen(graph: fx.Graph) -> None:
    """Rewrite the calls of a graph that is about to become code."""
    results = _results(graph)
    for node in list(graph.nodes):
        if node.op == "call_function":
            # A view of what needs a gradient needs one, too: results stay detached.
            same = None if node.target is _aten.detach.default and node in results else _same(node)
            if same is not None:
                _replace(node, same)
            elif node.target is _aten.view.default and _is_inner_view(node.args[0]):
                node.replace_input_with(node.args[0], node.args[0].args[0])
    for node in graph.nodes:  # now that no view is compared any more: the example of a sum is as before
        if node.target is _aten.view.default:
            _shape_at_once(node)
        elif node.target is _aten.addmm.default:
            _as_linear(node)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.target in (*_TWICE_IS_NOTHING, _aten.view.default, _aten.detach.default):
            graph.erase_node(node)
    for node in graph.nodes:
        if node.op == "call_function":
            _bind(node)


def _results(graph: fx.Graph) -> set[fx.Node]:
    """What a graph returns, and what its results are views of."""
    (output,) = graph.find_nodes(op="output")
    found: set[fx.Node] = set()
    open_ends = list(output.all_input_nodes)
    while open_ends:
        node = open_ends.pop()
        if node not in found:
            found.add(node)
            open_ends += node.all_input_nodes if _may_be_view(node) else []
    return found


def _may_be_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    return any(value.alias_info is not None for value in node.target._schema.returns)


def _same(node: fx.Node) -> fx.Node | None:
    """What has the value of a view that changes nothing."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target is _aten.detach.default:
        return source
    if node.target in _TWICE_IS_NOTHING and source.op == "call_function" and source.target is node.target:
        before = source.args[0]
        assert isinstance(before, fx.Node)
        return before if set(node.args[1:]) == set(source.args[1:]) else None
    if node.target is _aten.view.default:
        example, sizes = source.meta.get("val"), _numbers(node.args[1])
        # Compared with a symbol, a number would become its value for good.
        if isinstance(example, torch.Tensor) and sizes is not None and sizes == _numbers(example.shape):
            return source
    return None


def _replace(node: fx.Node, same: fx.Node) -> None:
    """Read another node instead; a result stays a tensor of its own, for autograd tells results apart by that."""
    returned = same.op == "placeholder" or any(user.op == "output" for user in same.users)
    node.replace_all_uses_with(same, lambda user: user.op != "output" or not returned)


def _shape_at_once(node: fx.Node) -> None:
    """A view that drops what a sum keeps: without it, the sum has that shape at once."""
    total: Any = node.args[0]
    if total.target is not _aten.sum.dim_IntList or len(total.users) > 1 or tuple(total.args[2:]) != (True,):
        return
    summed, kept = _numbers(total.args[1]), _numbers(total.meta["val"].shape) if "val" in total.meta else None
    if summed is None or kept is None:
        return
    if _numbers(node.args[1]) == [size for k, size in enumerate(kept) if k not in summed]:
        total.args = total.args[:2]
        node.replace_all_uses_with(total)


def _as_linear(node: fx.Node) -> None:
    """A product with a transposed matrix, to which a vector is added: what PyTorch computes so for a linear layer."""
    examples = [one.meta.get("val") for one in node.args if isinstance(one, fx.Node)]
    weight: Any = node.args[2]
    dims = [one.dim() for one in examples if isinstance(one, torch.Tensor)]
    if not node.kwargs and dims == [1, 2, 2] and weight.target is _aten.t.default:
        node.target, node.args = torch._C._nn.linear, (node.args[1], weight.args[0], node.args[0])


def _is_inner_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is _aten.view.default


def _numbers(sizes: Any) -> list[int] | None:
    """Sizes, where all are known."""
    listed = list(sizes) if isinstance(sizes, Sequence) else []
    return listed if all(type(size) is int and size >= 0 for size in listed) else None


def _bind(node: fx.Node) -> None:
    sizes = node.args[1] if len(node.args) == 2 and not node.kwargs else ()
    listed = isinstance(sizes, Sequence) and len(sizes) > 0  # the methods take sizes one by one, at least one
    if node.target in _METHODS and listed:
        node.op, node.target, node.args = "call_method", _METHODS[node.target], (node.args[0], *node.args[1])
    else:
        node.target = bound(node)
