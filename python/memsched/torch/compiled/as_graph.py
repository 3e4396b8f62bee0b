"""The graph of a captured step, for planners: one op a call, one tensor a storage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from memsched._core import Graph
from memsched.torch.compiled.joint import Joint, Operation
from memsched.torch.compiled.parameters import TRAVELS, parameter_called, travelling_in
from memsched.torch.compiled.private import FREED
from memsched.torch.compiled.resident import Resident
from memsched.torch.compiled.sizes import NO_LOSS, LossBytes, Sizes
from memsched.torch.compiled.update_mark import Update
from memsched.torch.errors import CaptureError

LEAVE, RETURN, END = "leave", "return", "end"
"""Ops that no call of the step is: the caller takes the results, brings gradients, and takes gradients."""

Step = Mapping[str, Any]


class Kernel(NamedTuple):
    """One of several algorithms for an operation."""

    name: str
    seconds: float
    workspace: int  # as in `Cost`


class Cost(NamedTuple):
    """What one run of an operation takes."""

    seconds: float = 0.0
    workspace: int = 0  # bytes that its kernels allocate and give back, beside what it reads and writes
    kernels: Sequence[Kernel] = ()  # where there is a choice


def name_of(joint: Joint, storage: int) -> str:
    """Of the tensor that stands for a storage."""
    base = joint.storages[storage].base
    several = [n for n in joint.storages_of(base) if joint.storages[n].base is base]
    own = parameter_called(base.meta[TRAVELS]) if TRAVELS in base.meta else base.name
    return own if len(several) == 1 else f"{own}:{several.index(storage)}"


def gradients_of(op: Operation) -> Sequence[int]:
    """The storages that an update reads and does not change: of its gradient, and of what that is clipped by."""
    return op.reads[1:] if op.update is None or not op.update.adds else op.reads


def changed_by(op: Operation) -> Sequence[int]:
    """The storage of the parameter that an update changes, if it does."""
    return op.reads[:1] if op.update is not None and not op.update.adds else ()


def held_storages(joint: Joint) -> set[int]:
    """Storages that the caller holds: parameters, inputs, results, and the gradient of a loss."""
    return constants(joint).union(joint.storages_in((*joint.primals, *returned(joint), *_losses(joint))))


def returned(joint: Joint) -> list[fx.Node]:
    """The results of a forward that the caller gets."""
    return [node for node in joint.results if isinstance(node, fx.Node) and node not in joint.copied]


def constants(joint: Joint) -> set[int]:
    """Storages that are there with the graph."""
    return {s.number for s in joint.storages if s.base.op == "get_attr"}


def _losses(joint: Joint) -> list[fx.Node]:
    """The gradients of results that are one number: the caller may hold them."""
    return [node for node in joint.tangents if node.meta["val"].dim() == 0]


def held_by_caller(joint: Joint, sizes: Sizes) -> Resident:
    """What the graph itself tells of the bytes that no plan moves: all but what it is given."""
    own = constants(joint)
    return Resident(
        parameters=sizes.total(own),
        results=sizes.total(held_storages(joint).difference(joint.storages_in(joint.primals), own)),
        updates=sizes.total(joint.storages_in(joint.updated)),
        random=sum(_STATE_BYTES for one in joint.operations if one.random) if joint.device.type == "cpu" else 0,
    )


_STATE_BYTES = 5056  # of the CPU's generator


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of a captured graph in a step: its forward, and later its backward."""

    joint: Joint
    sizes: Sizes
    loss: LossBytes = NO_LOSS  # after its forward
    # Places of the primals that are parameters, and which parameters they are, if that is known.
    static: Sequence[int] = ()
    parameters: frozenset[int] = frozenset()
    leaves: Sequence[int] = ()  # places of others whose gradients autograd keeps
    beside: int = 0  # bytes of the gradients that arrive otherwise than traced, while PyTorch copies them

    @property
    def inputs(self) -> list[str]:
        """Type and shape of each tensor that it is given beside parameters and buffers, such as "int64 8x1024"."""
        given = enumerate(self.joint.primals[self.joint.tokens :], self.joint.tokens)
        values = (node.meta.get("val") for k, node in given if k not in self.static)
        return [self._told(one) for one in values if isinstance(one, torch.Tensor)]

    def _told(self, one: torch.Tensor) -> str:
        try:
            shape = "x".join(str(self.sizes.number(size)) for size in one.shape) or "scalar"
        except CaptureError:  # a size that is known only while the step runs
            shape = "of some shape"
        return f"{str(one.dtype).removeprefix('torch.')} {shape}"

    @property
    def loss_gradients(self) -> int:
        """Bytes of the gradients of results that are one number, which the caller holds."""
        return self.sizes.total(self.joint.storages_in(_losses(self.joint)))

    @property
    def laid_out_anew(self) -> int:
        """Bytes of the largest gradient that autograd copies, as it lies otherwise than its parameter."""
        pairs = zip(self.joint.primals[self.joint.tokens :], self.joint.gradients, strict=False)
        others = [gradient for primal, gradient in pairs if self._lies_otherwise(gradient, primal)]
        return max((self.sizes.bytes_of(n) for n in self.joint.storages_in(others)), default=0)

    def _lies_otherwise(self, gradient: Any, primal: fx.Node) -> bool:
        if not isinstance(gradient, fx.Node):
            return False
        one, other = gradient.meta["val"], primal.meta["val"]
        if one.dim() != other.dim():  # autograd adds up what was broadcast
            return True
        steps = zip(one.shape, one.stride(), other.stride(), strict=True)
        return any(self.sizes.number(a) != self.sizes.number(b) for n, a, b in steps if self.sizes.number(n) > 1)

    def copies_of(self, places: Iterable[int]) -> int:
        """Bytes of the gradients of some primals that autograd copies, as their memory is not theirs alone."""
        joint = self.joint
        given = set(joint.storages_in(joint.primals)) | constants(joint)
        users = Counter(n for node in joint.gradients if isinstance(node, fx.Node) for n in joint.storages_of(node))
        found = 0
        for k in places:
            gradient = joint.gradients[k - joint.tokens]
            if not isinstance(gradient, fx.Node) or (one := gradient.meta["val"]).device != joint.device:
                continue
            (storage,) = joint.storages_of(gradient)
            sides = [tuple(map(self.sizes.number, side)) for side in zip(one.shape, one.stride(), strict=True)]
            if storage in given or users[storage] > 1 or any(step == 0 and n > 1 for n, step in sides):
                found += math.prod(n for n, _ in sides) * one.element_size()
                users[storage] -= 1  # whoever is last keeps it
        return found

    @property
    def copies(self) -> int:
        """Bytes of all such gradients that autograd keeps."""
        return self.copies_of((*self.static, *self.leaves))

    @property
    def travelling(self) -> int:
        """Bytes of the states of the optimiser that are tensors of the plan."""
        return sum(op.update.state for op in self.joint.operations if op.update is not None)

    @property
    def gradient_bytes(self) -> int:
        """Of the gradients that the backward returns, and of copies of them."""
        return self.sizes.total(self.joint.storages_in(self.joint.gradients)) + self.copies

    @property
    def parameter_gradients(self) -> list[int]:
        """Bytes of each gradient of a parameter."""
        storages = self.joint.storages_in(self.joint.gradients[k - self.joint.tokens] for k in self.static)
        return [self.sizes.bytes_of(n) for n in storages]


def no_costs(visit: Visit) -> list[Cost]:
    """Of a visit of which nothing was measured."""
    return [Cost()] * len(visit.joint.operations)


def step_graph(
    visits: Sequence[Visit],
    returns: Sequence[int],
    costs: Sequence[Sequence[Cost]],
    *,
    resident: int,
    name: str = "step",
) -> Graph:
    """The graph that planners see: the forwards of all visits, then their backwards.

    What the caller holds is resident: its tensors have no bytes, and only order the ops. So have the tensors that keep
    operations with effects, and those that draw random numbers, in their order. The gradients of a backward stay with
    the caller while those after it run, which have them as workspace; so they have in their forward, too.

    `visits` are in the order of their forwards, `returns` tells the order of their backwards, and `costs` has those
    of each visit's operations.
    """
    value = visits[-1].loss.value
    parts = [_Part(visit, costs[k], prefix(k, len(visits)), value) for k, visit in enumerate(visits)]
    gathered, known = 0, set[tuple[int, frozenset[int]]]()
    for k in returns:
        visit = visits[k]
        parts[k].gathered = gathered
        gathered += visit.gradient_bytes
        if (id(visit.joint), visit.parameters) in known:  # autograd adds to what an earlier call has returned, in place
            gathered -= sum(visit.parameter_gradients) + visit.copies_of(visit.static)
            parts[k].copies -= visit.copies_of(visit.static)
            parts[k].summing = max(visit.parameter_gradients, default=0)
        elif visit.parameters:
            known.add((id(visit.joint), visit.parameters))
    ops = [op for part in parts for op in part.forward()]
    ops += [op for k in returns for op in parts[k].backward()]
    return Graph([one for part in parts for one in part.tensors], ops, name=name, resident=resident)


def prefix(visit: int, visits: int) -> str:
    """What the names of a visit's ops and tensors begin with; nothing if it is the only one."""
    return f"{visit + 1}/" if visits > 1 else ""


class _Part:
    def __init__(self, visit: Visit, costs: Sequence[Cost], prefix: str, value: int) -> None:
        self._visit, self._costs, self._prefix = visit, costs, prefix
        self._value = value  # bytes of the loss, and of other tensors that nobody frees, in the backward
        joint = visit.joint
        self._held = held_storages(joint)
        tangents = joint.storages_in(joint.tangents)
        self._arriving = [n for n in tangents if n not in self._held]
        if not FREED:
            self._value += visit.sizes.total(self._arriving) + visit.beside
            self._held |= set(self._arriving)
        self._sources = {s.number for s in joint.storages if s.writer is None} - set(self._arriving)
        self._gradients = [n for n in joint.storages_in(joint.gradients) if n not in self._sources]
        self._held -= (travelling := travelling_in(joint).keys())
        updates = [(op, op.update) for op in joint.operations if op.update is not None]
        self._sources -= (lasting := {n for op, _ in updates for n in changed_by(op)} | travelling)
        kept = self._held.union(self._sources, self._gradients)
        self._on_host = {
            op.number for op, one in updates if one.host_seconds is not None and kept.isdisjoint(gradients_of(op))
        }
        # What computes for these comes before the end of the step, and they need not.
        self._awaited = {
            joint.storages[n].writer for op, _ in updates if op.number in self._on_host for n in gradients_of(op)
        }
        self._done: list[str] = []  # tensors without bytes that the end of the step reads
        self._chain: str | None = None  # the tensor without bytes that the next operation in order reads
        self._left = ""  # orders the backward after the forward
        self.gathered = 0  # bytes of the gradients that other backwards have returned before
        self.summing = 0  # of the largest gradient that is added to one of these
        self.copies = visit.copies
        self.tensors = [
            self._tensor(s.number, "gradient" if s.number in self._gradients else "activation")
            for s in joint.storages
            if s.number not in self._sources | lasting
        ]
        persistent = [self._tensor(n, "") for n in sorted(lasting)]  # without bytes where these are resident
        persistent += [{"name": prefix + one.states_name, "size": one.state} for _, one in updates if one.state]
        waiting = {one.gradient_name: one.waiting for _, one in updates if one.waiting}  # by one or two ops each
        persistent += [{"name": prefix + name, "size": size} for name, size in waiting.items()]
        self.tensors += [{**one, "role": "persistent"} for one in persistent]

    def forward(self) -> Iterator[dict[str, Any]]:
        """Its ops until it returns results to the caller."""
        joint = self._visit.joint
        for op in joint.operations:
            if not op.backward:
                yield self._op(op)
        returned = [self._name(n) for n in joint.storages_in(joint.results) if n not in self._sources]
        returned += [self._chain] if self._chain is not None else []
        self._left = self._order(LEAVE)
        yield self._point(LEAVE, returned, [self._left])

    def backward(self) -> Iterator[dict[str, Any]]:
        """Its ops from when gradients arrive until the caller takes those that it computes."""
        back = self._order(RETURN)
        yield self._point(RETURN, [self._left], [*(self._name(n) for n in self._arriving), back])
        for op in self._visit.joint.operations:
            if op.backward:
                made = self._op(op)
                made["reads"].append(back)
                yield made
        yield self._point(END, [*(self._name(n) for n in self._gradients), *self._done], [])

    def _op(self, op: Operation) -> dict[str, Any]:
        reads = [self._name(n) for n in op.reads if n not in self._sources]
        writes = [self._name(n) for n in op.writes]
        if op.update is not None:
            return self._update(op, op.update)
        if op.once or op.random:
            reads += [self._chain] if self._chain is not None else []
            self._chain = self._order(op.node.name)
            writes.append(self._chain)
        if op.number in self._awaited:
            writes.append(self._end_after(op))
        seconds, workspace, kernels = self._costs[op.number]
        within = self._visit.sizes.within(op.node) + (self._value if op.backward else 0) + self.gathered
        within += self._visit.sizes.total(self._held.intersection(op.writes)) if len(op.writes) > 1 else 0
        kernels = kernels or [Kernel("plain", seconds, workspace)]
        return {
            "name": self._prefix + op.node.name,
            "phase": "bwd" if op.backward else "fwd",
            "kind": _kind(op.node),
            "layer": op.number,
            "reads": reads,
            "writes": writes,
            "choices": [{"alg": one.name, "time": one.seconds, "workspace": within + one.workspace} for one in kernels],
            "once": op.once,
        }

    def _update(self, op: Operation, update: Update) -> dict[str, Any]:
        """An update comes after all that reads its parameter, and before the end of the step if it cannot leave."""
        changed = [*map(self._name, changed_by(op)), *([self._prefix + update.states_name] if update.state else [])]
        changed += [self._prefix + update.gradient_name] if update.waiting else []
        gradients = [self._name(n) for n in gradients_of(op) if n not in self._sources]
        on_host = op.number in self._on_host
        return {
            "name": self._prefix + op.node.name,
            "phase": "bwd",
            "kind": _kind(op.node),
            "layer": op.number,
            "reads": [*changed, *gradients],
            "updates": changed,
            "writes": [*map(self._name, op.writes), *([] if on_host else [self._end_after(op)])],
            "choices": [
                {
                    "alg": "plain",
                    "time": self._costs[op.number].seconds,
                    "workspace": update.workspace + self._value + self.gathered,
                }
            ],
            "once": True,
            **({"host_time": update.host_seconds} if on_host else {}),
        }

    def _end_after(self, op: Operation) -> str:
        """What orders the end of the step after an operation."""
        self._done.append(self._order(f"{op.node.name}, for the end" if op.once and not op.update else op.node.name))
        return self._done[-1]

    def _point(self, name: str, reads: list[str], writes: list[str]) -> dict[str, Any]:
        outside = self._visit.loss.most if name == LEAVE else self._value
        outside += max(self._visit.laid_out_anew, self.summing) + self.copies if name == END else 0
        outside += self._visit.beside if name == RETURN and FREED else 0
        return {
            "name": self._prefix + name,
            "phase": "fwd" if name == LEAVE else "bwd",
            "kind": name,
            "layer": len(self._visit.joint.operations),
            "reads": reads,
            "writes": writes,
            "choices": [{"alg": "plain", "time": 0.0, "workspace": self.gathered + outside}],
            "once": True,
        }

    def _name(self, storage: int) -> str:
        return self._prefix + name_of(self._visit.joint, storage)

    def _tensor(self, storage: int, role: str) -> dict[str, Any]:
        size = 0 if storage in self._held else self._visit.sizes.bytes_of(storage)
        return {"name": self._name(storage), "size": size, "role": role}

    def _order(self, name: str) -> str:
        """A new tensor without bytes, which orders what reads it after the op of this name."""
        made = f"{self._prefix}after {name}"
        self.tensors.append({"name": made, "size": 0, "role": "activation"})
        return made


def _kind(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.overloadpacket.__name__
    return getattr(target, "__name__", str(target))
