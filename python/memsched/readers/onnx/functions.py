"""Functions of an ONNX model, put in place of their calls; a short file may call them a great many times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from memsched.errors import InvalidInputError, MemschedError
from memsched.support.interrupt import optional

MOST_OPS = 100_000  # of a model with functions
_MOST_BYTES = 2**28  # of the ops of such a model, without large constants
_DEEPEST = 100  # calls, one inside another

_Key = tuple[str, str, str]


def inlined(model: Any) -> Any:
    """The model without functions of its own; refuses too many ops or bytes, and functions that call themselves."""
    if not model.functions:
        return model
    ops, size = _Count(model).of(model.graph.node)
    if ops > MOST_OPS:
        raise InvalidInputError(f"the functions of the model make more than {MOST_OPS} ops of it; call fewer of them")
    if size > _MOST_BYTES:
        raise InvalidInputError(
            f"the functions of the model make more than {_MOST_BYTES} bytes of it; call fewer of them, or keep their "
            "constants in initializers of the model"
        )
    inliner = optional("onnx.inliner", MemschedError("the package onnx has no onnx.inliner; install it anew"))
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # of onnx, which has classes of its own
        raise InvalidInputError(f"the functions of the model cannot be put in place of their calls: {error}") from error


class _Count:
    """How many ops, and bytes of them, there are once the functions stand in place of their calls."""

    def __init__(self, model: Any) -> None:
        self.bodies = {_key(one.domain, one.name, one): one.node for one in model.functions}
        self.found: dict[_Key, tuple[int, int]] = {}
        self.open: dict[_Key, None] = {}  # functions that are being counted, each called by the one before

    def of(self, nodes: Iterable[Any]) -> tuple[int, int]:
        ops = size = 0
        for one in with_inner(nodes):
            key = _key(one.domain, one.op_type, one)
            more = self.called(key) if key in self.bodies else (1, one.ByteSize())
            ops, size = ops + more[0], size + more[1]
        return ops, size

    def called(self, key: _Key) -> tuple[int, int]:
        """Those of a function, each call counted."""
        if key not in self.found:
            if key in self.open:
                raise InvalidInputError(f"the function '{key[1]}' of the model calls itself; ONNX has no recursion")
            if len(self.open) >= _DEEPEST:
                raise InvalidInputError(f"the functions of the model call each other more than {_DEEPEST} levels deep")
            self.open[key] = None
            self.found[key] = self.of(self.bodies[key])
            del self.open[key]
        return self.found[key]


def _key(domain: str, name: str, owner: Any) -> _Key:
    """What tells a function from others, of its definition or of a call; old versions of onnx have no overloads."""
    return ("" if domain == "ai.onnx" else domain, name, getattr(owner, "overload", ""))


def with_inner(nodes: Iterable[Any]) -> Iterator[Any]:
    """All nodes, and those of the graphs in their attributes."""
    left = list(nodes)
    while left:
        node = left.pop()
        yield node
        for one in node.attribute:
            for graph in (one.g, *one.graphs):
                left += graph.node
