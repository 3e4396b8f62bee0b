"""What AOTAutograd's joint graph of forward and backward does to memory: operations, and the storages they touch."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from memsched.torch.compiled.update_mark import UPDATE, Update
from memsched.torch.errors import CaptureError
from memsched.torch.kernel_bytes import COPY_OF_STORAGE
from memsched.torch.nests import tensors_of


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that one operation writes, or that is there from the start; views of it are the same storage."""

    number: int
    base: fx.Node  # the first node whose value lies in it
    writer: int | None  # the operation that writes it; None where it is given


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of the joint graph that computes something; a call that only makes a view of a tensor is none."""

    number: int
    node: fx.Node
    reads: tuple[int, ...]  # storages; what is given to the step, such as parameters, is among them, too
    writes: tuple[int, ...]
    backward: bool  # it needs a gradient that arrives, or AOTAutograd traced it in the backward
    once: bool  # it cannot run again: it has an effect besides its results
    random: bool  # it draws random numbers
    update: Update | None = None  # it changes the first storage that it reads, by the optimiser, unless it only adds


@dataclass(slots=True)
class Joint:
    """A joint graph, read once."""

    module: fx.GraphModule
    primals: list[fx.Node]  # what the forward is given
    tangents: list[fx.Node]  # the gradients of its results that the backward is given
    results: list[Any]  # what the forward returns, and the backward: nodes, or None
    gradients: list[Any]
    updated: set[fx.Node] = field(default_factory=set)
    """Inputs that the step changes, such as running statistics: AOTAutograd writes to them right after the forward."""
    new_values: dict[int, int] = field(default_factory=dict)
    """Which results are new values of which inputs, by their places."""
    copied: set[fx.Node] = field(default_factory=set)
    """Results that are nothing but new values of such inputs: they are dropped once they are copied."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where most of the bytes are
    loose: frozenset[Any] = frozenset()
    """The symbols of whole numbers that are part of no tensor's size: no plan depends on their values."""
    looked_at: set[fx.Node] | None = None
    """Operations whose results may lie otherwise than traced: they are laid out as traced. None: whose code does so."""
    lapped: dict[str, float] | None = None  # seconds of operations, by name, as they ran in training
    operations: list[Operation] = field(default_factory=list)  # as they were traced, forward before backward
    storages: list[Storage] = field(default_factory=list)
    folded: dict[fx.Node, list[int]] = field(default_factory=dict)
    """Calls that each reader makes anew, with the storages that they need."""
    _storage_at: dict[int, int] = field(default_factory=dict)  # by the address of the storage of an example
    _operation_at: dict[fx.Node, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many primals come before the inputs: those that keep operations with effects in order."""
        calls = self.module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
        return len({node.args[0] for node in calls}.intersection(self.primals))

    @property
    def sizes(self) -> list[fx.Node]:
        """The primals that are sizes and no tensors."""
        return [node for node in self.primals if isinstance(node.meta.get("val"), torch.SymInt)]

    def storages_of(self, node: fx.Node) -> list[int]:
        """The storages in which the value of a node lies; none where it is no tensor.

        A call that is folded into its readers has none of its own: it needs those of what it reads.
        """
        if node in self.folded:
            return self.folded[node]
        return [self.storage_at(one) for one in tensors_of(node.meta.get("val"))]

    def storages_in(self, nodes: Iterable[Any]) -> list[int]:
        """Those of several nodes, each once; what is no node has none."""
        return list(dict.fromkeys(n for node in nodes if isinstance(node, fx.Node) for n in self.storages_of(node)))

    @property
    def asks_for_sizes(self) -> bool:
        """Whether some size is that of a tensor which the step computes."""
        asking = (node for target in _SIZES for node in self.module.graph.find_nodes(op="call_function", target=target))
        asked = self.storages_in(node.args[0] for node in asking)
        return any(self.storages[n].writer is not None for n in asked)

    @property
    def whole(self) -> set[int]:
        """The storages that operations copy with all that lies there, or read wherever they like."""
        calls = self.module.graph.find_nodes
        reading = (node for target in _WHOLE for node in calls(op="call_function", target=target))
        return set(self.storages_in(node.args[0] for node in reading))

    def storage_at(self, example: torch.Tensor) -> int:
        """The storage in which the example of a value lies."""
        key = address(example)
        if key not in self._storage_at:
            raise CaptureError(
                "a part of the step makes tensors that none of its calls shows; no plan knows their bytes"
            )
        return self._storage_at[key]

    def operation_of(self, node: fx.Node) -> int | None:
        """The operation that a node is; None for views, numbers, and what is given."""
        return self._operation_at.get(node)


def modules_in(joint: Joint, start: str) -> Iterator[tuple[str, str]]:
    """Operations, whose names begin so, and the modules to which they or their forward belong, by their paths."""
    for op in joint.operations:
        if module := module_of(op.node):  # not the model itself
            yield start + op.node.name, module


def module_of(node: fx.Node) -> str:
    """The module to which a node or its forward belongs, by its path; "" for the model itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, *_ in list(stack.values())[-1:]:
        below = re.sub(r"^L\['\w+'\]\.?(__closure__\[\d+\]\.cell_contents\.?)*", "", str(path))
        return re.sub(r"_modules\['(\w+)'\]", r"\1", below)
    return ""


def run_again(joint: Joint) -> set[int]:
    """The operations that plain PyTorch runs again in the backward, since the model itself checkpoints them.

    These are all on the way to what the backward of the same checkpoint reads; those after it are left out, as PyTorch
    stops there (`use_reentrant=False`).
    """
    both = ((node.meta.get("seq_nr"), _checkpoint_of(node)) for node in joint.module.graph.nodes)
    checkpoint = {number: own for number, own in both if own is not None}  # a backward has its forward's number
    found: set[int] = set()
    needed: set[tuple[int, Any]] = set()
    for op in reversed(joint.operations):
        own = checkpoint.get(op.node.meta.get("seq_nr")) if op.backward else _checkpoint_of(op.node)
        if own is not None and (op.backward or any((n, own) in needed for n in op.writes)):
            needed.update((n, own) for n in op.reads)
            found.update(() if op.backward else (op.number,))
    return found


def _checkpoint_of(node: fx.Node) -> Any:
    """The number of the model's checkpoint that drops what a node of the forward computes."""
    drops = "RECOMPUTE" in getattr(node.meta.get("recompute"), "name", "")
    return node.meta.get("ac_graph_id") if drops else None


_aten = torch.ops.aten
_WHOLE = (*COPY_OF_STORAGE, _aten.as_strided.default, _aten.as_strided_copy.default, _aten.as_strided_scatter.default)
_SIZES = (_aten.sym_size.int, _aten.sym_stride.int, _aten.sym_numel.default, _aten.sym_storage_offset.default)


def _loose_symbols(module: fx.GraphModule, sizes: Sequence[torch.SymInt]) -> frozenset[Any]:
    found = {one.node.expr for one in sizes if one.node.expr.is_Symbol}
    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)] if found else []
    for node in itertools.chain.from_iterable(part.graph.nodes for part in parts):
        for one in tensors_of(node.meta.get("val")):
            for size in (*one.shape, *one.stride(), one.storage_offset(), one.untyped_storage().nbytes()):
                if isinstance(size, torch.SymInt):
                    found -= size.node.expr.free_symbols
    return frozenset(found)


def address(example: torch.Tensor) -> int:
    """What two examples in the same storage have in common."""
    if example.layout is not torch.strided:
        raise CaptureError(f"a tensor of layout {example.layout} has no storage to plan; only dense tensors have")
    return example.untyped_storage()._cdata


def read_joint(module: fx.GraphModule, results: int, folded: frozenset[fx.Node] | None = None) -> Joint:
    """Find operations and storages of a joint graph, of whose outputs the first `results` are the forward's.

    Its placeholders are named primals_* and tangents_*, its nodes carry examples without data in meta["val"]. For a
    compiler that fuses, `folded` are the calls that it makes anew in each reader, which so cost nothing and store
    nothing; random operations then run once.

    Raises
    ------
    CaptureError
        It has what no plan can hold, such as operations that write in place; named in the message.
    """
    placeholders = list(module.graph.find_nodes(op="placeholder"))
    tangents = [node for node in placeholders if "tangents" in str(node.target)]
    unknown = [n.name for n in placeholders if n not in tangents and "primals" not in str(n.target)]
    if unknown:
        raise CaptureError(f"the step takes {unknown[0]}, which is neither an input nor a gradient; no plan knows it")
    sizes = [n.meta.get("val") for n in placeholders if isinstance(n.meta.get("val"), torch.SymInt)]
    if any(one.node.is_nested_int() for one in sizes):
        raise CaptureError("the step takes nested tensors, whose sizes are known only while it runs")
    (output,) = module.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    joint = Joint(
        module=module,
        primals=[node for node in placeholders if node not in tangents],
        tangents=tangents,
        results=outputs[:results],
        gradients=outputs[results:],
        loose=_loose_symbols(module, sizes),
    )
    _find_updates(joint)
    behind = _behind(module.graph, tangents)
    last = _last_of_forward(joint, behind)
    place = {node: k for k, node in enumerate(module.graph.nodes)}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            _add_storages(joint, node, None)
        elif node.op == "call_function":
            if folded is not None and node in folded:
                joint.folded[node] = joint.storages_in(node.all_input_nodes)
                continue
            if node.target is torch.ops.higher_order.with_effects and is_foreign(node.args[1]):
                raise CaptureError(f"{node.args[1]} runs in order with others by a token, which no plan can hold")
            if not _is_operation(joint, node):
                continue
            if any(address(one) in joint._storage_at for one in tensors_of(node.meta.get("val"))):
                raise CaptureError(f"{node.target} returns what it is given beside what it computes")
            number = len(joint.operations)
            writes = tuple(_add_storages(joint, node, number))
            joint._operation_at[node] = number
            joint.operations.append(
                Operation(
                    number=number,
                    node=node,
                    reads=tuple(joint.storages_in(node.all_input_nodes)),
                    writes=writes,
                    backward=node in behind or place[node] > last,
                    once=UPDATE in node.meta or _has_effect(node) or (folded is not None and _is_random(node)),
                    random=folded is None and _is_random(node),
                    update=node.meta.get(UPDATE),
                )
            )
        elif node.op != "output":
            raise CaptureError(f"the step calls {node.target} as a {node.op}, which no plan can run again")
    joint.device = _main_device(joint)
    return joint


_CAST_WITHIN = (torch.ops.aten.affine_grid_generator.default, torch.ops.aten._trilinear.default)


def give_memory(module: fx.GraphModule) -> None:
    """Zeros of forward-mode derivatives have no memory, which could not be copied. What they meet is traced by now."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._efficientzerotensor.default):
        node.target, node.args = torch.ops.aten.full.default, (node.args[0], 0)
        with node.meta["val"].fake_mode:
            node.meta["val"] = node.target(*node.args, **node.kwargs)
    module.recompile()


def check_casts(module: fx.GraphModule) -> None:
    """Refuse what multiplies matrices inside a kernel: autocast casts that in training, and not in a captured step."""
    for node in module.graph.nodes:
        if node.target in _CAST_WITHIN:
            raise CaptureError(f"under autocast {node.target} computes otherwise when it is run by itself")


def _main_device(joint: Joint) -> torch.device:
    bytes_on: dict[torch.device, int] = {}
    for storage in joint.storages:
        for one in tensors_of(storage.base.meta.get("val")):
            size = one.untyped_storage().nbytes()
            bytes_on[one.device] = bytes_on.get(one.device, 0) + (size if isinstance(size, int) else 1)
    return max(bytes_on, key=lambda device: bytes_on[device], default=torch.device("cpu"))


def _add_storages(joint: Joint, node: fx.Node, writer: int | None) -> list[int]:
    """The storages that a node is the first to lie in."""
    new = []
    for one in tensors_of(node.meta.get("val")):
        key = address(one)
        if key not in joint._storage_at:
            joint._storage_at[key] = len(joint.storages)
            new.append(len(joint.storages))
            joint.storages.append(Storage(len(joint.storages), node, writer))
    return new


def _is_operation(joint: Joint, node: fx.Node) -> bool:
    """Whether a call computes something: what lies in known storages, and what is a number, costs nothing."""
    if node.target is operator.getitem:
        return False
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        raise CaptureError(f"{node.target} writes to one of its arguments, which no plan can run again")
    if "val" not in node.meta:
        return True
    found = tensors_of(node.meta["val"])
    if not found:
        return _has_effect(node)
    return any(address(one) not in joint._storage_at for one in found)


def _has_effect(node: fx.Node) -> bool:
    """Whether a call does more than return results, or must run on all processes at once."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace in ("_c10d_functional", "c10d"):
        return True
    return bool(node.is_impure(impure_random=False))


def is_foreign(target: Any) -> bool:
    """Whether an operation is none of PyTorch's own, which say what they do: a user's, or one that holds graphs."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace not in ("aten", "prims")
    return isinstance(target, torch._ops.OperatorBase)


def _is_random(node: fx.Node) -> bool:
    """Whether a call draws random numbers, or may; attention is tagged so, but draws none without dropout."""
    target = node.target
    if is_foreign(target):
        return True
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    for place, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return not (isinstance(given, float | int) and given == 0.0)
    return True


def _find_updates(joint: Joint) -> None:
    """The inputs that the forward returns new values of, and these values."""
    (output,) = joint.module.graph.find_nodes(op="output")
    changed = [getattr(one, "mutated_input", None) for one in output.meta.get("desc", ())][: len(joint.results)]
    inputs = {node.meta.get("desc"): node for node in joint.primals}
    joint.updated = {inputs[name] for name in changed if name in inputs}
    values = {node for node, name in zip(joint.results, changed, strict=False) if name is not None}
    joint.new_values = {k: joint.primals.index(inputs[name]) for k, name in enumerate(changed) if name in inputs}
    joint.copied = values - {node for node, name in zip(joint.results, changed, strict=False) if name is None}


def _behind(graph: fx.Graph, tangents: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes that need a gradient that arrives."""
    found = set(tangents)
    for node in graph.nodes:
        if any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _last_of_forward(joint: Joint, behind: set[fx.Node]) -> int:
    """The place of the last node that the forward's results need, or that was traced in the forward."""
    needed = {node for node in joint.results if isinstance(node, fx.Node)}
    last = -1
    nodes = list(joint.module.graph.nodes)
    for node in reversed(nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    for k, node in enumerate(nodes):
        if node in behind or node.op != "call_function":
            continue
        if node in needed or node.meta.get("partitioner_tag") == "is_forward":
            last = k
    return last
