"""A schedule of a captured step as two graphs: what the forward runs and saves, and what the backward runs."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from memsched.errors import InternalError
from memsched.torch.compiled import copies, randomness, update_calls
from memsched.torch.compiled.as_graph import LEAVE, Step, held_storages, name_of
from memsched.torch.compiled.joint import Joint
from memsched.torch.compiled.laps import lap
from memsched.torch.compiled.layouts import drawn_from, laid, order_of
from memsched.torch.compiled.parameters import parameter_called, travelling_in
from memsched.torch.compiled.private import RUNS_AGAIN
from memsched.torch.compiled.sizes import Sizes
from memsched.torch.nests import tensors_of


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A step as a schedule wants it."""

    forward: fx.GraphModule
    """Takes the primals; returns the results, then what it saves for the backward, then the primals that are sizes."""
    backward: fx.GraphModule
    """Takes the sizes, what was saved, and the arriving gradients; returns the gradients."""
    saved: int
    """How many tensors the forward saves."""
    dying: Mapping[str, int]
    """Placeholders of the backward that end with their last reader, by name, with the storages in which they lie."""


def rewrite(
    joint: Joint,
    forward: Sequence[Step],
    backward: Sequence[Step],
    sizes: Sizes | None = None,
    laps: int | None = None,
) -> Rewritten:
    """Write the graphs of forward and backward.

    Each run of an op is a node, each run after the first a copied node; a tensor is gone after its last reader, so a
    `free` writes nothing but an end of a copy to the host that is under way. Views are made where they are read.

    The steps are those of a schedule, as `steps_of` gives them: `LEAVE` is where the forward has its results. With
    `sizes` the graphs are for these alone; without, sizes stay symbols, as numbers that are no sizes always do. `laps`
    is the serial number of what times the operations.
    """
    writer = _Writer(joint, forward, backward, sizes)
    writer.laps = laps
    return writer.write()


class _Writer:
    def __init__(self, joint: Joint, forward: Sequence[Step], backward: Sequence[Step], sizes: Sizes | None) -> None:
        self._joint, self._forward, self._backward, self.sizes = joint, forward, backward, sizes
        self.laps: int | None = None
        self.held = held_storages(joint)
        self.drawn_from = drawn_from(joint.module.graph, {op.node for op in joint.operations if op.random})
        # What others may hold when a half is over: results, and gradients that updates are given.
        on_host = {step["update"] for step in backward if "update" in step}
        updates = [op for op in joint.operations if op.update is not None and op.node.name not in on_host]
        self.returned = set(joint.storages_in(joint.results)).union(*(op.reads for op in updates))
        self.operations = {op.node.name: op for op in joint.operations}
        self.storages = {name_of(joint, s.number): s.number for s in joint.storages}
        marked = [op.update for op in joint.operations if op.update is not None]
        self.travel = {one.states_name: ("states", one.place) for one in marked if one.state}
        self.travel |= {one.gradient_name: ("waiting", one.place) for one in marked if one.waiting}
        self.parameters = {parameter_called(name): (n, name) for n, name in travelling_in(joint).items()}
        self.serial = next((op.node.args[0] for op in joint.operations if op.update is not None), None)
        self.runs = Counter(step["run"] for step in (*forward, *backward) if "run" in step)
        self.states: dict[str, Any] = {}  # of the generators, before a random operation's first run

    def write(self) -> Rewritten:
        joint = self._joint
        forward, backward = _Half(joint, self), _Half(joint, self)
        for node in joint.primals:
            forward.values[node] = forward.placeholder(node)
        results: list[Any] = []
        for step in self._forward:
            if step.get("run") == LEAVE:
                forward._await(list(forward.coming))
                results = [forward.value(node) for node in joint.results]
            else:
                forward.take(step)

        for node in joint.sizes:
            backward.values[node] = backward.placeholder(node)
        backward.forward = forward
        places: list[fx.Node] = []  # the arriving gradients are the last placeholders
        for node in joint.tangents:
            places.append(backward.placeholder(node))
            backward._set(node, places[-1])
        backward.first_argument = places[0] if places else None
        for step in self._backward:
            backward.take(step)
        backward._await(list(backward.coming))
        gradients = [backward.value(node) for node in joint.gradients]
        forward.graph.output((*results, *backward.saved, *(forward.values[node] for node in joint.sizes)))
        backward.graph.output(tuple(gradients))
        return Rewritten(forward.module(), backward.module(), len(backward.saved), backward.dying)


_COPIES = {copies.offload, copies.prefetch, copies.arrived, copies.gone, update_calls.arrived_parameter}
_COPIES |= {*update_calls.TRAVEL.values(), update_calls.update_on_host}


@dataclass(slots=True)
class _Half:
    """One of the two graphs while it is written."""

    joint: Joint
    writer: _Writer
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    """What stands here for a node of the joint graph."""
    away: dict[int, Any] = field(default_factory=dict)
    """By storage, its copy on the host."""
    leaving: dict[int, Any] = field(default_factory=dict)
    """By storage, the value whose copy to the host may be under way."""
    coming: dict[int, tuple[Any, tuple[Any, ...]]] = field(default_factory=dict)
    """By storage, of what is on its way back: the function that waits for it, and what that is called with."""
    forward: _Half | None = None
    """What is not here is asked of the forward, which saves it."""
    saved: list[Any] = field(default_factory=list)
    first_argument: Any = None
    views: dict[int, list[fx.Node]] = field(default_factory=dict)
    """By storage, the nodes in `values` that lie in it."""
    freed: set[int] = field(default_factory=set)
    dying: dict[str, int] = field(default_factory=dict)
    """See `Rewritten`."""
    copied: bool = False
    """Whether a copy has begun or ended since the last operation."""

    def placeholder(self, node: fx.Node, name: str | None = None) -> fx.Node:
        new = self.graph.placeholder(name or node.name)
        new.meta = dict(node.meta)
        for number in set(self.joint.storages_of(node)) - self.writer.held:
            self.dying[new.name] = number
        return new

    def take(self, step: Step) -> None:
        """Write one step of the schedule."""
        if "run" in step:
            self.run(self.writer.operations[step["run"]])
            return
        (verb, name), *_ = step.items()
        if verb == "update":
            self.update_on_host(self.writer.operations[name])
            return
        if name in self.writer.travel:
            self._call(update_calls.TRAVEL[verb], (self.writer.serial, *self.writer.travel[name]), None)
            return
        if name in self.writer.parameters:
            self._move(verb, *self.writer.parameters[name])
            return
        storage = self.writer.storages.get(name)
        if storage is None:  # a tensor without bytes that only keeps an order
            return
        base, holder = self.joint.storages[storage].base, self._holder(storage)
        if holder is None:  # a result of several that nobody reads: it is gone already
            return
        if verb == "offload":
            self._await([storage])
            source = self.value(holder)
            self.away[storage] = self._call(copies.offload, (source,), base)
            self.leaving[storage] = source
        elif verb == "prefetch":
            host = self._host_copy(storage)
            value = self._call(copies.prefetch, (host, holder.meta["val"].device), base)
            self.coming[storage] = copies.arrived, (value, host)
        elif verb == "free":
            self._await([storage])
            before = self.forward.leaving if self.forward is not None else {}
            if storage in before:  # it left in the forward, which hands it on: its copy may still be under way
                before.pop(storage)
                self.leaving[storage] = self.value(holder)
            if storage in self.leaving:
                value = self.leaving.pop(storage)
                # Others may hold what was given to this half, gradients and what was saved, and what it returns.
                owned = value.op != "placeholder" and storage not in self.writer.returned
                self._call(copies.gone, (value, self._host_copy(storage), owned), None)
            if storage not in self.writer.held:  # what the caller holds stays
                self._forget(storage)
                self.freed.add(storage)
        else:
            raise InternalError(f"a schedule of a captured step has a step {step}")

    def _move(self, verb: str, storage: int, name: str) -> None:
        """Write what moves a parameter: where it is on the host and on the device is known to the updates."""
        serial = self.writer.serial
        if verb != "prefetch":
            self._await([storage])
        self._call(update_calls.TRAVEL[verb], (serial, "parameters", name), None)
        if verb == "prefetch":
            self.coming[storage] = update_calls.arrived_parameter, (serial, name)
        elif verb == "free":
            self._forget(storage)
            self.freed.add(storage)

    def update_on_host(self, op: Any) -> None:
        """Write an update that runs there, by copies of what it reads."""
        serial, place, _, gradient, copied, *factor = op.node.args
        there = None if gradient is None else self._on_host(gradient)
        self._call(update_calls.update_on_host, (serial, place, there, copied, *map(self._on_host, factor)), None)

    def _on_host(self, node: fx.Node) -> fx.Node:
        """What stands for a node on the host: what was copied of its storage, or a view of that."""
        storage, *_ = self.joint.storages_of(node)  # of several views, as a split makes, it is one
        if node is self._holder(storage) or self._is_part(node):
            return self._call(copies.on_host, (self._host_copy(storage), self.joint.device), None)
        new = self.graph.node_copy(
            node, lambda one: self._on_host(one) if self.joint.storages_of(one) else self.value(one)
        )
        new.meta = dict(node.meta)
        return new

    def run(self, op: Any) -> None:
        """Write an operation, and take its results apart."""
        node = op.node
        self._await(op.reads)
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.value)
        target = node.target
        if op.random and self.writer.runs[node.name] > 1:
            target, args = self._drawing(node, args)
        for number in op.writes:
            self._forget(number)
        if self.writer.laps is not None and self.copied:  # what copies took is not the operation's
            self._call(lap, (self.writer.laps, ""), None)
        self.copied = False
        new = self.graph.call_function(target, args, kwargs)
        new.meta = dict(node.meta)
        if self.writer.laps is not None:
            self._call(lap, (self.writer.laps, node.name), None)
        if self.forward is not None and not op.backward:
            new.meta[RUNS_AGAIN] = True
        self._set(node, self._laid(op, node, new))
        for user in node.users:
            if user.target is operator.getitem and user.users:
                self._set(user, self._laid(op, user, self._copy(user)))

    def _laid(self, op: Any, node: fx.Node, value: fx.Node) -> fx.Node:
        """A result of an operation as it was traced."""
        order = order_of(node.meta.get("val")) if op.node in (self.joint.looked_at or ()) else None
        if order is None:
            return value
        sizes, strides = self.writer.sizes, node.meta["val"].stride()
        drawn = str(op.node.target) if node in self.writer.drawn_from else ""
        return self._call(laid, (value, order, sizes and tuple(map(sizes.number, strides)), drawn), node)

    def value(self, node: Any) -> Any:
        """What stands here for a node: it is there, a view of what is there, or a number."""
        if not isinstance(node, fx.Node):
            return node
        if node in self.values:
            return self.values[node]
        example = node.meta.get("val", self)
        sizes = self.writer.sizes if isinstance(example, torch.SymInt) else None
        if sizes is not None and self.joint.loose.isdisjoint(example.node.expr.free_symbols):
            return sizes.number(example)
        if example is None or isinstance(example, bool | int | float | str | torch.device | torch.dtype):
            return example
        if node.op == "get_attr":
            self.values[node] = self._copy(node)
            return self.values[node]
        if node.op == "placeholder" or self.joint.operation_of(node) is not None or self._is_part(node):
            return self._from_forward(node)
        self._set(node, self._copy(node))
        return self.values[node]

    def module(self) -> fx.GraphModule:
        self.graph.lint()
        return fx.GraphModule(self.joint.module, self.graph)

    def _is_part(self, node: fx.Node) -> bool:
        """Whether a node takes one of the results of an operation."""
        if node.target is not operator.getitem:
            return False
        source = node.args[0]
        return isinstance(source, fx.Node) and self.joint.operation_of(source) is not None

    def _from_forward(self, node: fx.Node) -> Any:
        if self.forward is None or not self.freed.isdisjoint(self.joint.storages_of(node)):
            raise InternalError(f"the schedule reads {node.name} where it is not on the device")
        source = self.forward.value(node)
        if node in self.joint.updated:
            whole = not self.joint.whole.isdisjoint(self.joint.storages_of(node))
            source = self.forward._call(copies.kept, (source, whole), node)
        self._set(node, self._argument(node, source))
        return self.values[node]

    def _argument(self, node: fx.Node, source: Any) -> Any:
        """A value of the forward, as a new argument of the backward."""
        self.saved.append(source)
        before = self.first_argument
        assert before is not None, "a backward takes a gradient"
        with self.graph.inserting_before(before):
            return self.placeholder(node, f"saved_{len(self.saved)}")

    def _host_copy(self, storage: int) -> Any:
        if storage not in self.away:
            assert self.forward is not None, "a schedule fetches only what has left"
            self.away[storage] = self._argument(self.joint.storages[storage].base, self.forward.away[storage])
        return self.away[storage]

    def _holder(self, storage: int) -> fx.Node | None:
        """A node whose value lies in a storage: its base, or what takes it from the base's results."""
        base = self.joint.storages[storage].base
        if isinstance(base.meta["val"], torch.Tensor):
            return base
        for user in base.users:
            if user.target is operator.getitem and storage in self.joint.storages_of(user):
                return user
        return None

    def _await(self, storages: Iterable[int]) -> None:
        """What is on its way from the host must be there now."""
        for storage in storages:
            if storage in self.coming:
                holder, like = self._holder(storage), self.joint.storages[storage].base
                assert holder is not None
                self._set(holder, self._call(*self.coming.pop(storage), like))

    def _set(self, node: fx.Node, value: Any) -> None:
        self.values[node] = value
        for number in self.joint.storages_of(node):
            self.views.setdefault(number, []).append(node)
            self.freed.discard(number)

    def _forget(self, storage: int) -> None:
        for node in self.views.pop(storage, ()):
            self.values.pop(node, None)

    def _copy(self, node: fx.Node) -> fx.Node:
        new = self.graph.node_copy(node, self.value)
        new.meta = dict(node.meta)
        return new

    def _call(self, function: Any, args: tuple[Any, ...], like: fx.Node | None) -> fx.Node:
        new = self.graph.call_function(function, args)
        self.copied = self.copied or function in _COPIES
        if like is not None:
            new.meta = {"val": like.meta.get("val")}
        return new

    def _drawing(self, node: fx.Node, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """What is called for a random operation that runs more than once, and with what."""
        device, first = self._device_of(node), node.name not in self.writer.states
        if first:
            self.writer.states[node.name] = state = self._call(randomness.state, (device,), None)
            self.values[state] = state
        return randomness.first if first else randomness.again, (self._state(node), device, node.target, *args)

    def _device_of(self, node: fx.Node) -> torch.device:
        return next((one.device for one in tensors_of(node.meta["val"])), torch.device("cpu"))

    def _state(self, node: fx.Node) -> Any:
        state = self.writer.states[node.name]
        if state not in self.values:
            self.values[state] = self._argument(state, state)
        return self.values[state]
