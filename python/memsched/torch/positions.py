"""Positions that a model makes of the sizes of its inputs, and rows that it has for them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

_FEW = 1 << 20  # elements
_ATEN = torch.ops.aten
_INDEXED = (_ATEN.index, _ATEN.index_put, _ATEN.index_put_)
_ALONG = (_ATEN.index_select, _ATEN.gather, _ATEN.scatter, _ATEN.scatter_, _ATEN.scatter_add, _ATEN.scatter_add_)
_MASKS = (torch.bool, torch.uint8)


class Positions(TorchDispatchMode):
    """Refuses indices beyond what they index, on tensors without data, as PyTorch does on tensors with data.

    Known are the numbers that follow from sizes alone, such as those of `torch.arange(length)`, at most 2^20 a tensor.

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
        self._known = _Known(WeakTensorKeyDictionary())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATEN.lift_fresh.default:
            self._known.constant(args[0], args[0])
        self._known.check_read(func, args, lambda one: one.shape)
        out = func(*args, **kwargs)
        self._known.follow_numbers(func, args, kwargs, out, out)
        return out


def check_positions(graph: fx.Graph) -> None:
    """Refuse a captured graph with such indices.

    Raises
    ------
    IndexError
    """
    numbers: dict[Any, torch.Tensor] = {}
    known = _Known(numbers)
    last: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.nodes):
        for one in node.all_input_nodes:
            last.setdefault(one, node)
    for node in graph.nodes:
        if node.op == "get_attr":
            known.constant(node, getattr(graph.owning_module, node.target, None))
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        known.check_read(node.target, node.args, lambda one: one.meta["val"].shape)
        value = node.meta.get("val")
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        results = [*map(parts.get, range(len(value)))] if isinstance(value, (tuple, list)) else node
        known.follow_numbers(node.target, node.args, node.kwargs, results, value)
        for one in node.all_input_nodes:
            if last[one] is node:
                numbers.pop(one, None)


class _Known:
    """The numbers of tensors, or nodes, that follow from sizes. Views share memory here as they do in the program."""

    def __init__(self, numbers: MutableMapping[Any, Any]) -> None:
        self._numbers = numbers

    def constant(self, one: Any, value: Any) -> None:
        """Note a tensor with data, such as `torch.tensor(3)` is in a program without."""
        if type(value) is torch.Tensor and value.numel() <= _FEW:
            with _disable_current_modes():
                self._numbers[one] = value.detach().clone()

    def check_read(self, func: Any, args: Sequence[Any], shape_of: Callable[[Any], Sequence[int]]) -> None:
        for dim, index in _indices(func, args):
            numbers = self._numbers.get(index)
            if numbers is None or not numbers.numel() or numbers.dtype in _MASKS:
                continue
            with _disable_current_modes():
                lowest, highest = (int(one) for one in numbers.aminmax())
            rows = shape_of(args[0])[dim]
            wrong = highest if highest >= rows else lowest
            if not (-rows if func.overloadpacket in _INDEXED else 0) <= wrong < rows:
                what = "an embedding" if func.overloadpacket is _ATEN.embedding else f"dimension {dim} of a tensor"
                raise IndexError(f"{what} of {rows:,} rows is asked for row {wrong:,}")

    def follow_numbers(self, func: Any, args: Any, kwargs: Any, results: Any, values: Any) -> None:
        """Note the results of an operation, whose shapes `values` have, if they follow from what it is given."""
        given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, (torch.Tensor, fx.Node))]
        if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator may write to what it is given
            self._forget(given)
        elif all(one in self._numbers for one in given) and _follows(func, values):
            args, kwargs = pytree.tree_map_only((torch.Tensor, fx.Node), self._numbers.__getitem__, (args, kwargs))
            try:
                with _disable_current_modes():
                    found = func(*args, **{**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
            except (RuntimeError, TypeError, ValueError):  # not on a CPU, or of memory that has none
                return self._forget(given)
            for one, numbers in zip(pytree.tree_leaves(results), pytree.tree_leaves(found), strict=True):
                if one is not None:
                    self._numbers[one] = numbers
        elif func._schema.is_mutable:
            self._forget(given)

    def _forget(self, given: Sequence[Any]) -> None:
        changed = {self._numbers[one].untyped_storage()._cdata for one in given if one in self._numbers}
        for one, numbers in list(self._numbers.items()):
            if numbers.untyped_storage()._cdata in changed:
                del self._numbers[one]


def _follows(func: Any, values: Any) -> bool:
    """Whether the results of an operation follow from what it is given, and are such as positions are."""
    drawn = torch.Tag.nondeterministic_seeded in func.tags or func.name().startswith(("aten::empty", "aten::new_empty"))
    leaves = pytree.tree_leaves(values)
    return not drawn and all(
        isinstance(one, torch.Tensor) and isinstance(one.numel(), int) and one.numel() <= _FEW for one in leaves
    )


def _indices(func: Any, args: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """What an operation reads at, and in which dimension of its first argument."""
    packet = getattr(func, "overloadpacket", None)
    if packet is _ATEN.embedding:
        yield 0, args[1]
    elif packet in _ALONG:
        yield args[1], args[2]
    elif packet in _INDEXED:
        yield from ((dim, one) for dim, one in enumerate(args[1]) if one is not None)
