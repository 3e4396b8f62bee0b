"""The bytes of what a captured step touches, for one set of values of its symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.joint import Joint, address
from memsched.torch.compiled.parameters import TRAVELS
from memsched.torch.errors import CaptureError
from memsched.torch.kernel_bytes import kernel_bytes, scratch_bytes
from memsched.torch.nests import tensors_of

WORKSPACE = "workspace"
"""Names, in the `meta` of a node that is none of PyTorch's operations, the bytes that it allocates and gives back."""


@dataclass(frozen=True, slots=True)
class LossBytes:
    """What a loss needs that runs outside the graphs, when their last results are there.

    It was counted with some bytes of results; with more it is taken to need as much more.
    """

    most: int = 0  # while it runs, forward and backward
    value: int = 0  # of these, what its value takes until the step's backward is over
    results: int = 0

    def with_results(self, results: int) -> LossBytes:
        """What it needs with so many bytes of results."""
        if results <= self.results or self.results == 0:
            return self
        most, value = (-(-one * results // self.results) for one in (self.most, self.value))
        return LossBytes(most, value, results)


NO_LOSS = LossBytes()


class Sizes:
    """The bytes of a step's storages for one set of values of its symbols.

    The values are those of the primals that are sizes, in order; none where all shapes are fixed. `given` are bytes of
    storages that are not as large as traced, and `scratch` those that operations are known to hold within.
    """

    def __init__(
        self,
        joint: Joint,
        values: Sequence[int],
        given: Mapping[int, int] | None = None,
        scratch: Mapping[fx.Node, int] | None = None,
    ) -> None:
        symbols = [node.meta["val"] for node in joint.sizes]
        self.values = tuple(values)
        self._symbols = {symbol.node.expr: value for symbol, value in zip(symbols, values, strict=True)}
        self._joint, self._device = joint, joint.device
        self._bytes, self._scratch = dict(given or {}), scratch or {}

    def number(self, value: Any) -> int:
        """A size, in numbers."""
        if isinstance(value, torch.SymInt):
            found = value.node.expr.xreplace(self._symbols)
            if not isinstance(found, int) and not found.is_Integer:
                raise CaptureError(f"a size or another number, {found}, is known only while the step runs")
            return int(found)
        return int(value)

    def bytes_of(self, storage: int) -> int:
        """Of a storage on the step's device; 0 elsewhere."""
        if storage not in self._bytes:
            self._bytes[storage] = self._bytes_of(storage)
        return self._bytes[storage]

    def total(self, storages: Iterable[int]) -> int:
        """Bytes of several storages together."""
        return sum(map(self.bytes_of, storages))

    def _bytes_of(self, storage: int) -> int:
        base = self._joint.storages[storage].base
        examples = enumerate(tensors_of(base.meta["val"]))
        place, one = next((k, one) for k, one in examples if self._joint.storage_at(one) == storage)
        if one.device != self._device:
            return 0
        # A parameter that is on the host is traced without memory.
        traced = self.number(one.nbytes if TRAVELS in base.meta else one.untyped_storage().nbytes())
        if self._joint.storages[storage].writer is None:
            return traced
        args = fx.map_arg(base.args, lambda node: node.meta.get("val"))
        return max(traced, kernel_bytes(base.target, args, one, place, self._of_argument))

    def _of_argument(self, one: Any) -> int:
        return self.bytes_of(self._joint.storage_at(one)) if isinstance(one, torch.Tensor) else self.number(one)

    def within(self, node: fx.Node) -> int:
        """What an operation holds beside its results: of its kernel, or in graphs that it runs, as in `torch.cond`."""
        owner = node.graph.owning_module
        named = [getattr(owner, str(one.target), None) for one in node.all_input_nodes if one.op == "get_attr"]
        graphs = [one.graph for one in named if isinstance(one, fx.GraphModule)]
        carried = sum(self._made(one)[1] for one in graphs) if node.target is torch.ops.higher_order.while_loop else 0
        if node.target is torch.ops.higher_order.map_impl:  # what it stacks is there twice
            carried = sum(map(self._of_example, tensors_of(node.meta.get("val"))))
        args = fx.map_arg(node.args, lambda one: one.meta.get("val"))
        scratch = node.meta.get(WORKSPACE) or scratch_bytes(node.target, args, node.kwargs, self._of_argument)
        scratch = max(scratch, self._scratch.get(node, 0))
        return carried + max((self._made(one)[0] for one in graphs), default=scratch)

    def _made(self, graph: fx.Graph) -> tuple[int, int]:
        """The most bytes that a graph holds beside what it is given and returns, and the bytes that it returns."""
        storages = {node: {address(one): one for one in tensors_of(node.meta.get("val"))} for node in graph.nodes}
        (output,) = graph.find_nodes(op="output")
        returned = {key: one for node in output.all_input_nodes for key, one in storages[node].items()}
        given = {key for node in graph.find_nodes(op="placeholder") for key in storages[node]}
        last = {key: node for node in graph.nodes for read in (node, *node.all_input_nodes) for key in storages[read]}
        held: dict[int, int] = {}
        most = 0
        for node in graph.nodes:
            new = {key: one for key, one in storages[node].items() if key not in given and key not in returned}
            held |= {key: self._of_example(one) for key, one in new.items()}
            most = max(most, sum(held.values()) + self.within(node))
            held = {key: size for key, size in held.items() if last[key] is not node}
        return most, sum(self._of_example(one) for key, one in returned.items() if key not in given)

    def _of_example(self, one: torch.Tensor) -> int:
        return self.number(one.untyped_storage().nbytes()) if one.device == self._device else 0
