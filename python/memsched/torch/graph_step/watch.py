"""Which node of a trace makes, shows and reads which storage, found by one run on tensors without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from memsched.torch.capture import is_getitem
from memsched.torch.facts import fake_copy, tensors_of
from memsched.torch.graph_step.rewrite import is_random


class Watched(fx.Interpreter):
    """A trace that has run once. It keeps all values, so that a storage can be told by its address.

    Parameters
    ----------
    module : torch.fx.GraphModule
    fake : FakeTensorMode
    values : sequence of Tensor
        One a placeholder, of that mode.
    device : torch.device
        Tensors elsewhere count for nothing: some CUDA kernels keep their seed on the CPU.

    Attributes
    ----------
    values : dict
        Node -> value.
    storages : dict
        Node -> the storages under the tensors of its value, in order, by address.
    makers : dict
        Storage -> the first node that has it.
    sizes : dict
        Storage -> bytes.
    readers : dict
        Storage -> the operations that read it.
    results : list of torch.fx.Node
        What the output names.
    """

    def __init__(
        self, module: fx.GraphModule, fake: FakeTensorMode, values: Sequence[Any], device: torch.device
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._fake, self._device = fake, device
        self.values: dict[fx.Node, Any] = {}
        self.storages: dict[fx.Node, list[int]] = {}
        self.makers: dict[int, fx.Node] = {}
        self.sizes: dict[int, int] = {}
        self.readers: dict[int, list[fx.Node]] = {}
        self.results: list[fx.Node] = []
        with fake, torch.no_grad():
            self.run(*values)
        for node in self.operations():
            for storage in dict.fromkeys(s for argument in node.all_input_nodes for s in self.storages[argument]):
                self.readers.setdefault(storage, []).append(node)

    def fetch_attr(self, target: str) -> Any:
        return fake_copy(self._fake, super().fetch_attr(target))

    def run_node(self, n: fx.Node) -> Any:
        value = _asked_for(n, super().run_node(n))
        if n.op == "output":
            self.results = list(n.args[0])
            return value
        self.values[n] = value
        self.storages[n] = []
        for tensor in tensors_of(value):
            if tensor.device.type != self._device.type:
                continue
            storage = tensor.untyped_storage()
            self.storages[n].append(storage._cdata)
            self.makers.setdefault(storage._cdata, n)
            self.sizes[storage._cdata] = storage.nbytes()
        return value

    def makes(self, node: fx.Node) -> list[int]:
        """The storages that begin with a node, each once."""
        return [s for s in dict.fromkeys(self.storages[node]) if self.makers[s] is node]

    def computes(self, node: fx.Node) -> bool:
        """Whether a node is an operation, and not only another look at what is there."""
        return node.op == "call_function" and (bool(self.makes(node)) or is_random(node))

    def operations(self) -> list[fx.Node]:
        """All that compute, in order."""
        return [node for node in self.values if self.computes(node)]

    def bases(self) -> dict[fx.Node, fx.Node]:
        """Of every node the one that it is a look at: an operation, a placeholder, a constant, or itself."""
        bases: dict[fx.Node, fx.Node] = {}
        for node in self.values:
            bases[node] = node
            if node.op == "call_function" and not self.computes(node):
                shown = set(self.storages[node])
                source = next((a for a in node.all_input_nodes if shown & set(self.storages[a])), None)
                source = node.all_input_nodes[0] if is_getitem(node) else source
                bases[node] = bases[source] if source is not None else node
        return bases


def _asked_for(node: fx.Node, value: Any) -> Any:
    """A value without what its `output_mask` leaves out: kernels give nothing there, though some that work without
    data do.
    """
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    if "output_mask" not in names:
        return value
    place = names.index("output_mask")
    mask = node.args[place] if place < len(node.args) else node.kwargs["output_mask"]
    assert isinstance(mask, list | tuple)
    return tuple(one if wanted else None for one, wanted in zip(value, mask, strict=True))
