"""Small changes to a traced step: what would be written beside the results becomes a result, and less is read."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from memsched.torch import capture, facts
from memsched.torch.capture import CaptureError
from memsched.torch.graph_step.kernels import drawn, filled, with_statistics
from memsched.torch.graph_step.layers import PLACE

aten = torch.ops.aten

# They take the shape and the type of what they read, and nothing else: position of the value -> the operations.
_VALUE_OF: dict[Any, Any] = {
    aten.empty_like.default: None,
    aten.new_empty.default: None,
    aten.new_empty_strided.default: None,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}
_VALUE_AT: dict[Any, int] = {aten.full_like.default: 1, aten.new_full.default: 2}

# What they fill a tensor with does not depend on what it held.
_IN_PLACE: dict[Any, Any] = {
    aten.bernoulli.p: aten.bernoulli_.float,
    aten.uniform.default: aten.uniform_.default,
    aten.normal_functional.default: aten.normal_.default,
    aten.exponential.default: aten.exponential_.default,
}


def name_statistics(graph: fx.Graph, buffers: dict[str, fx.Node]) -> dict[str, fx.Node]:
    """Let batch normalisations give out their new running statistics; what is read afterwards are these.

    Parameters
    ----------
    buffers
        The placeholders of the buffers, by name.

    Returns
    -------
    dict
        Buffer -> node of the last value.
    """
    names = {node: name for name, node in buffers.items()}
    newest: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        statistics = _statistics(node)
        if not statistics:
            continue
        results = len(node.target._schema.returns)
        norm = node.target
        node.args = (norm, tuple(statistics), *node.args)
        node.target = with_statistics
        after = node
        while after.next.target is operator.getitem and after.next.args[0] is node:
            after = after.next
        for number, place in enumerate(statistics):
            old = node.args[place + 2]
            with graph.inserting_after(after):
                after = graph.call_function(operator.getitem, (node, results + number))
            after.meta[PLACE] = node.meta[PLACE]
            _replace_behind(old, after)
            if old in names:
                names[after] = names[old]
                newest[names[old]] = after
            elif old.op != "call_function" or _is_view(old):
                raise CaptureError(f"{norm} keeps its running statistics in a tensor that is no buffer; register it")
    return newest


def _statistics(node: fx.Node) -> list[int]:
    """Where the arguments stand that a batch normalisation writes to beside its results."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or _is_backward(node):
        return []
    written = {argument for argument, statistic in facts.written_nodes(node) if statistic}
    return [place for place, argument in enumerate(node.args) if argument in written]


def _is_view(node: fx.Node) -> bool:
    """Whether what is written to a node's value is written to another one's, too."""
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_backward(node: fx.Node) -> bool:
    return "backward" in str(node.target)


def _replace_behind(old: fx.Node, new: fx.Node) -> None:
    """Let what comes after `new` read it; a backward of a normalisation does not look at running statistics."""
    for user in list(old.users):
        ignores = _is_backward(user) and facts.is_batch_norm(user)
        if new < user and not ignores:
            user.replace_input_with(old, new)


def read_less(graph: fx.Graph) -> None:
    """Where an operation only looks at the shape of what it reads, let it read nothing."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor):
            continue
        like = _geometry(value)
        if node.target in _IN_PLACE:
            # Numbers are drawn in the order of memory. An operation in place had the layout of what it filled; its
            # functional form has another one. Nothing in place fills what overlaps: that one was functional.
            rest = [value for name, value in node.kwargs.items() if name != "generator"]
            filled_before = _geometry(node.args[0].meta["val"])
            layout = like if _overlaps(*filled_before[:2]) else filled_before
            _change(node, drawn, (*layout, _IN_PLACE[node.target], *node.args[1:], *rest))
        elif node.target in _VALUE_OF:
            _change(node, filled, (*like, _VALUE_OF[node.target]))
        elif node.target in _VALUE_AT:
            _change(node, filled, (*like, node.args[_VALUE_AT[node.target]]))


def _geometry(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), tuple(value.stride()), value.dtype, value.device


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements are one place in memory."""
    return any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True))


def _change(node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    node.target, node.args, node.kwargs = target, args, {}


def drop_unread(graph: fx.Graph) -> None:
    """Drop what nobody reads, but for what draws random numbers: the generator must go on as it does."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not is_random(node):
            graph.erase_node(node)


def is_random(node: fx.Node) -> bool:
    """Whether a node draws from the generator of random numbers."""
    return node.target is drawn or capture.is_random(node)
