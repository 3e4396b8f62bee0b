"""The graph of a captured step, for planners: one op a call, one tensor a storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from memsched._core import Graph
from memsched.torch.capture import CaptureError
from memsched.torch.compiled.joint import Joint, Operation, tensors

TURN, END = "turn", "end"
"""Ops that no call of the step is: the caller takes the results and brings gradients; the caller takes gradients."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that no plan moves, by what they are for.

    Attributes
    ----------
    parameters, inputs, results : int
        Of the step. The caller holds the results until the step ends.
    updates : int
        Copies of inputs that the step changes and may read again.
    gradients : int
        Of gradients that parameters have before the step: the step's own are added to them.
    optimizer : int
    others : int
        On the device, and not of this step.
    random : int
        States of random number generators, kept for operations that run again.
    reserve : int
        What the caller asked for.
    fused : int
        What a compiler holds at the peak beyond the tensors of the plan; below 0 where it stores less.
    """

    parameters: int = 0
    inputs: int = 0
    results: int = 0
    updates: int = 0
    gradients: int = 0
    optimizer: int = 0
    others: int = 0
    random: int = 0
    reserve: int = 0
    fused: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Each part by name."""
        return dataclasses.asdict(self)


class Sizes:
    """The bytes of a step's storages for one set of values of its symbols.

    Parameters
    ----------
    joint : Joint
    values : sequence of int
        Of the primals that are sizes, in order; empty where all shapes are fixed.
    """

    def __init__(self, joint: Joint, values: Sequence[int]) -> None:
        symbols = [node.meta["val"] for node in joint.primals if isinstance(node.meta.get("val"), torch.SymInt)]
        self._values = {symbol.node.expr: value for symbol, value in zip(symbols, values, strict=True)}
        self._joint, self._device = joint, joint.device

    def number(self, value: Any) -> int:
        """A size, in numbers."""
        if isinstance(value, torch.SymInt):
            found = value.node.expr.xreplace(self._values)
            if not isinstance(found, int) and not found.is_Integer:
                raise CaptureError(
                    f"a tensor's size, {found}, depends on values that are known only while the step runs"
                )
            return int(found)
        return int(value)

    def bytes_of(self, storage: int) -> int:
        """Of a storage on the step's device; 0 elsewhere."""
        for one in tensors(self._joint.storages[storage].base.meta["val"]):
            if self._joint._storage_at[one.untyped_storage()._cdata] == storage:
                return self.number(one.untyped_storage().nbytes()) if one.device == self._device else 0
        return 0


def name_of(joint: Joint, storage: int) -> str:
    """Of the tensor that stands for a storage."""
    base = joint.storages[storage].base
    several = [n for n in joint.storages_of(base) if joint.storages[n].base is base]
    return base.name if len(several) == 1 else f"{base.name}:{several.index(storage)}"


def held_storages(joint: Joint) -> set[int]:
    """Storages that the caller holds: parameters, inputs and results."""
    given = {n for node in joint.primals for n in joint.storages_of(node)}
    constants = {s.number for s in joint.storages if s.base.op == "get_attr"}
    returned = {n for node in joint.results if isinstance(node, fx.Node) for n in joint.storages_of(node)}
    return given | constants | returned


def held_by_caller(joint: Joint, sizes: Sizes, static: Sequence[int]) -> Held:
    """What the step itself tells of the bytes that no plan moves.

    Parameters
    ----------
    joint : Joint
    sizes : Sizes
    static : sequence of int
        Positions of the primals that are parameters or buffers.
    """
    lasting = {n for k in static if k < len(joint.primals) for n in joint.storages_of(joint.primals[k])}
    lasting |= {s.number for s in joint.storages if s.base.op == "get_attr"}
    given = {n for node in joint.primals for n in joint.storages_of(node)} - lasting
    changed = {n for node in joint.updated for n in joint.storages_of(node)}

    def total(numbers: set[int]) -> int:
        return sum(sizes.bytes_of(n) for n in numbers)

    return Held(
        parameters=total(lasting),
        inputs=total(given),
        results=total(held_storages(joint) - lasting - given),
        updates=total(changed),
        random=sum(_STATE_BYTES for one in joint.operations if one.random) if joint.device.type == "cpu" else 0,
    )


_STATE_BYTES = 5056  # of the CPU's generator


def step_graph(joint: Joint, sizes: Sizes, seconds: Sequence[float], *, resident: int, name: str = "step") -> Graph:
    """The graph that planners see.

    What the caller holds is resident: its tensors have no bytes, and only order the ops. So have the tensors that keep
    operations with effects, and those that draw random numbers, in their order.

    Parameters
    ----------
    joint : Joint
    sizes : Sizes
    seconds : sequence of float
        Of each operation.
    resident : int
        Bytes.
    """
    held = held_storages(joint)
    given = {s.number for s in joint.storages if s.writer is None}
    tangents = list(dict.fromkeys(n for node in joint.tangents for n in joint.storages_of(node)))
    arriving = [n for n in tangents if n not in held]
    sources = given - set(arriving)
    gradients = _storages(joint, joint.gradients)
    entries: list[dict[str, Any]] = []
    for storage in joint.storages:
        if storage.number not in sources:
            role = "gradient" if storage.number in gradients else "activation"
            size = 0 if storage.number in held else sizes.bytes_of(storage.number)
            entries.append({"name": name_of(joint, storage.number), "size": size, "role": role})
    ops: list[dict[str, Any]] = []
    chain: str | None = None  # the tensor without bytes that the next operation in order reads

    def add(op: Operation) -> None:
        nonlocal chain
        reads = [name_of(joint, n) for n in op.reads if n not in sources]
        writes = [name_of(joint, n) for n in op.writes]
        if op.once or op.random:
            if chain is not None:
                reads.append(chain)
            chain = f"after {op.node.name}"
            entries.append({"name": chain, "size": 0, "role": "activation"})
            writes.append(chain)
        workspace = sum(sizes.bytes_of(n) for n in op.writes if n in held) if len(op.writes) > 1 else 0
        ops.append(
            {
                "name": op.node.name,
                "phase": "bwd" if op.backward else "fwd",
                "kind": _kind(op.node),
                "layer": op.number,
                "reads": reads,
                "writes": writes,
                "choices": [{"alg": "plain", "time": seconds[op.number], "workspace": workspace}],
                "once": op.once,
            }
        )

    for op in joint.operations:
        if not op.backward:
            add(op)
    returned = [name_of(joint, n) for n in _storages(joint, joint.results) if n not in sources]
    returned += [chain] if chain is not None else []
    ops.append(_point(TURN, returned, [name_of(joint, n) for n in arriving], len(joint.operations)))
    turn = f"after {TURN}"
    entries.append({"name": turn, "size": 0, "role": "activation"})
    ops[-1]["writes"].append(turn)
    for op in joint.operations:
        if op.backward:
            add(op)
            ops[-1]["reads"].append(turn)
    ops.append(_point(END, [name_of(joint, n) for n in gradients if n not in sources], [], len(joint.operations)))
    return Graph(entries, ops, name=name, resident=resident)


def _storages(joint: Joint, nodes: Sequence[Any]) -> list[int]:
    return list(dict.fromkeys(n for node in nodes if isinstance(node, fx.Node) for n in joint.storages_of(node)))


def _point(name: str, reads: list[str], writes: list[str], layer: int) -> dict[str, Any]:
    choices: list[Mapping[str, Any]] = [{"alg": "plain", "time": 0.0, "workspace": 0}]
    return {
        "name": name,
        "phase": "bwd",
        "kind": name,
        "layer": layer,
        "reads": reads,
        "writes": writes,
        "choices": choices,
        "once": True,
    }


def _kind(node: fx.Node) -> str:
    target = node.target
    return (
        target.overloadpacket.__name__
        if isinstance(target, torch._ops.OpOverload)
        else getattr(target, "__name__", str(target))
    )
