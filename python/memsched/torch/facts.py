"""What each operation of a captured program reads, writes and shares, found by one run on tensors without data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from memsched.torch.capture import Program, is_random

# Batch normalisation updates its running statistics, which its schema does not say.
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one operation.

    Attributes
    ----------
    storages : frozenset of int
        The storages under its results.
    bytes : int
        Of those storages, together.
    writes : frozenset of int
        Storages that existed before it and that it changes.
    statistics : frozenset of int
        The part of `writes` that is running statistics, which it writes and its results do not depend on.
    floating, requires_grad : bool
        Whether a result is of floating (or complex) type, and whether a gradient flows to one.
    batch, state : bool
        Whether it depends on an input, and on a parameter.
    random : bool
        Whether it draws random numbers.
    """

    storages: frozenset[int]
    bytes: int
    writes: frozenset[int]
    statistics: frozenset[int]
    floating: bool
    requires_grad: bool
    batch: bool
    state: bool
    random: bool


def facts(program: Program, fake: FakeTensorMode, args: Sequence[torch.Tensor | Any]) -> dict[fx.Node, Facts]:
    """Facts of every node but the output.

    Parameters
    ----------
    program
    fake
        The mode under which `args` were made.
    args
        One value a placeholder.
    """
    with fake, torch.enable_grad(), program.autocast.context():
        watcher = _Watcher(program.graph_module, fake)
        watcher.run(*args)
    return watcher.facts


def fake_mode(values: Iterable[Any]) -> FakeTensorMode:
    """The mode of the first of some values that is a tensor without data; a new mode if none is."""
    for value in values:
        if isinstance(value, torch._subclasses.FakeTensor):
            mode: FakeTensorMode = value.fake_mode
            return mode
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_copy(fake: FakeTensorMode, value: Any) -> Any:
    """A tensor without data that is like `value`; a leaf that needs a gradient if `value` needs one."""
    if not isinstance(value, torch.Tensor):
        return value
    return fake.from_tensor(value) if not isinstance(value, torch._subclasses.FakeTensor) else value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nest of containers."""
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def is_batch_norm(node: fx.Node) -> bool:
    """Whether a node normalises a batch and updates running statistics."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == _STATISTICS[0] for argument in schema.arguments)


def bound_arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """Pairs (argument of the schema, value) of a call of an ATen operation."""
    arguments = node.target._schema.arguments
    for position, argument in enumerate(arguments):
        if position < len(node.args):
            yield argument, node.args[position]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def written_nodes(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    """Pairs (argument that the call changes, whether it is a running statistic)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    training = {a.name: v for a, v in bound_arguments(node)}.get("training", True)
    for argument, value in bound_arguments(node):
        statistic = argument.name in _STATISTICS and is_batch_norm(node) and bool(training)
        if statistic or (argument.alias_info is not None and argument.alias_info.is_write):
            for written in pytree.tree_leaves(value):
                if isinstance(written, fx.Node):
                    yield written, statistic


def subgraphs(module: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """The regions that a node runs, such as a block under torch.no_grad()."""
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            value = attribute(module, str(argument.target))
            if isinstance(value, fx.GraphModule):
                yield value


def attribute(module: torch.nn.Module, name: str) -> Any:
    """What a dotted name refers to."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


class _Watcher(fx.Interpreter):
    """Runs a program on fake tensors, keeps every value alive and writes down each node's facts."""

    def __init__(self, module: fx.GraphModule, fake: FakeTensorMode) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.fake = fake
        self.facts: dict[fx.Node, Facts] = {}
        self.alive: list[Any] = []
        self.ids: dict[int, int] = {}

    def fetch_attr(self, target: str) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: fake_copy(self.fake, t), super().fetch_attr(target))

    def storage(self, tensor: torch.Tensor) -> int:
        return self.ids.setdefault(tensor.untyped_storage()._cdata, len(self.ids))

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            self.alive.append(value)
            self.facts[n] = self.look_at(n, value)
        return value

    def look_at(self, node: fx.Node, value: Any) -> Facts:
        tensors = list(tensors_of(value))
        sizes = {self.storage(t): t.untyped_storage().nbytes() for t in tensors}
        inputs = [self.facts[argument] for argument in node.all_input_nodes]
        parameter = node.op == "get_attr" and any(isinstance(t, torch.nn.Parameter) for t in tensors)
        writes, statistics = self.changed(node)
        nested = [inner for region in subgraphs(self.module, node) for inner in region.graph.nodes]
        return Facts(
            storages=frozenset(sizes),
            bytes=sum(sizes.values()),
            writes=writes,
            statistics=statistics,
            floating=any(t.is_floating_point() or t.is_complex() for t in tensors),
            requires_grad=any(t.requires_grad for t in tensors),
            batch=node.op == "placeholder" or any(fact.batch for fact in inputs),
            state=parameter or any(fact.state for fact in inputs),
            random=is_random(node) or any(is_random(inner) for inner in nested),
        )

    def changed(self, node: fx.Node) -> tuple[frozenset[int], frozenset[int]]:
        """The storages that a node changes; a region that changes anything is taken to change all it is given."""
        pairs = list(written_nodes(node))
        writes = frozenset(s for written, _ in pairs for s in self.facts[written].storages)
        statistics = frozenset(s for written, statistic in pairs if statistic for s in self.facts[written].storages)
        for region in subgraphs(self.module, node):
            if any(True for inner in region.graph.nodes for _ in written_nodes(inner)):
                writes |= self.changed_inside(node, region)
        return writes, statistics

    def changed_inside(self, node: fx.Node, region: fx.GraphModule) -> frozenset[int]:
        """The storages that a region changes. One that does not just take the arguments behind it may change all."""
        given = frozenset(s for argument in node.all_input_nodes for s in self.facts[argument].storages)
        regions = [k for k, a in enumerate(node.args) if isinstance(a, fx.Node) and self.env.get(a) is region]
        operands = node.args[regions[0] + 1 :] if regions else ()
        if len(operands) != sum(inner.op == "placeholder" for inner in region.graph.nodes):
            return given
        inner = _Watcher(region, self.fake)
        inner.ids = self.ids
        with torch.no_grad():
            inner.run(*fx.map_arg(operands, lambda argument: self.env[argument]))
        self.alive.append(inner.alive)
        return given & frozenset(s for fact in inner.facts.values() for s in fact.writes)
