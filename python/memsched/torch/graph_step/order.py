"""What has to run before an operation though it makes nothing that the operation reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from memsched.torch.graph_step.kernels import filled, laid_out, with_statistics
from memsched.torch.graph_step.rewrite import is_random

_KNOWN = ("aten", "prims")


def keeps_its_turn(node: fx.Node) -> bool:
    """Whether an operation may not change places with others of which this is true, too.

    Such operations share a state that no tensor shows. Some draw random numbers one after the other; others are unknown
    to ATen and may do anything.
    """
    if is_random(node):
        return True
    target: Any = node.args[0] if node.target is with_statistics else node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace not in _KNOWN
    return target not in (filled, laid_out)


class Turns:
    """Told of all operations in the order of the trace.

    Parameters
    ----------
    bases : dict of torch.fx.Node to torch.fx.Node
        Of every node the one that it is a look at.
    """

    def __init__(self, bases: dict[fx.Node, fx.Node]) -> None:
        self._bases = bases
        self._places: dict[fx.Node, int] = {}
        self._last: int | None = None  # of those that keep their turn

    def next(self, node: fx.Node, writers: set[int]) -> tuple[int, ...]:
        """The operations that must have run before this one, beside the `writers` of what it reads.

        One that only looks at an input through the result of another reads nothing that the other made.
        """
        place = len(self._places)
        bases = {self._bases[argument] for argument in node.all_input_nodes}
        before = {self._places[base] for base in bases if base in self._places}
        if keeps_its_turn(node):
            before |= {self._last} if self._last is not None else set()
            self._last = place
        self._places[node] = place
        return tuple(sorted(before - writers))
