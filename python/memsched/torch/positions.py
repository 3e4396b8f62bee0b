"""Positions that a model makes of the sizes of its inputs, and rows that it has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

_FEW = 1 << 20  # elements
_EMBEDDING, _INDEX = torch.ops.aten.embedding.default, torch.ops.aten.index.Tensor
_ALONG = (torch.ops.aten.index_select.default, torch.ops.aten.gather.default)


class Positions(TorchDispatchMode):
    """Refuses indices beyond what they index, on tensors without data, as PyTorch does on tensors with data.

    Known are the integers that follow from sizes alone, such as those of `torch.arange(length)`.

    Raises
    ------
    IndexError

    Examples
    --------
    >>> import torch
    >>> from torch._subclasses import FakeTensorMode
    >>> with FakeTensorMode(), Positions():
    ...     rows = torch.nn.Embedding(512, 8)(torch.arange(600))
    Traceback (most recent call last):
    ...
    IndexError: an embedding of 512 rows is asked for row 599
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._known: MutableMapping[Any, torch.Tensor] = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        _check_indices(self._known, func, args, lambda one: one.shape)
        out = func(*args, **kwargs)
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator
            return out
        if func._schema.is_mutable:
            if any(one in self._known for one in given):
                self._known.clear()  # of views, too
        elif all(one in self._known for one in given) and _follows(func, out):
            known = pytree.tree_map_only(torch.Tensor, self._known.__getitem__, (args, kwargs))
            self._known[out] = _computed(func, *known)
        return out


def check_positions(graph: fx.Graph) -> None:
    """Refuse a captured graph with such indices.

    Raises
    ------
    IndexError
    """
    known: dict[Any, torch.Tensor] = {}
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        _check_indices(known, node.target, node.args, lambda one: one.meta["val"].shape)
        if all(one in known for one in node.all_input_nodes) and _follows(node.target, node.meta.get("val")):
            known[node] = _computed(node.target, *fx.map_arg((node.args, node.kwargs), known.__getitem__))


def _follows(func: Any, out: Any) -> bool:
    """Whether a result follows from what an operation is given, and is such as positions are."""
    if not isinstance(out, torch.Tensor) or out.dtype not in (torch.int64, torch.int32):
        return False
    drawn = torch.Tag.nondeterministic_seeded in func.tags or func.name().startswith("aten::empty")
    return not drawn and isinstance(out.numel(), int) and out.numel() <= _FEW


def _computed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    with _disable_current_modes():
        found: torch.Tensor = func(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
    return found


def _check_indices(
    known: MutableMapping[Any, torch.Tensor], func: Any, args: Sequence[Any], shape_of: Callable[[Any], Sequence[int]]
) -> None:
    for dim, index in _indices(func, args):
        if index not in known or not known[index].numel():
            continue
        with _disable_current_modes():
            lowest, highest = (int(one) for one in known[index].aminmax())
        rows = shape_of(args[0])[dim]
        wrong = highest if highest >= rows else lowest
        if not (-rows if func is _INDEX else 0) <= wrong < rows:
            what = "an embedding" if func is _EMBEDDING else f"dimension {dim} of a tensor"
            raise IndexError(f"{what} of {rows:,} rows is asked for row {wrong:,}")


def _indices(func: Any, args: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """What an operation reads at, and in which dimension of its first argument."""
    if func is _EMBEDDING:
        yield 0, args[1]
    elif func in _ALONG:
        yield args[1], args[2]
    elif func is _INDEX:
        yield from ((dim, one) for dim, one in enumerate(args[1]) if one is not None)
