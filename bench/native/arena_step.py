"""A training step whose tensors lie in one block of memory, at the addresses of a plan; on the CPU.

OLLA serves the k-th request of a step at the k-th planned address (section 3.5 of the paper). Here the captured step is
rehearsed once to learn what each request of an operation is for: a tensor of the graph, a result that the caller holds,
or memory that a kernel takes for itself. The last kind lies in the workspace that the schedule places. Results are no
part of a plan, so PyTorch's own allocator serves them, as it does what autograd and the caller ask for between forward
and backward. What libraries take from the system themselves nobody sees.

`memsched.torch.Arena` serves any step that repeats, at addresses of its own; this is for addresses that a plan has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from bench.native import arena
from torch import fx

import memsched as ms
from memsched.torch.arena.native import PASS, Requests, cpu
from memsched.torch.compiled.as_graph import Cost, Step, name_of, step_graph
from memsched.torch.compiled.backend import backend_of
from memsched.torch.compiled.calls import cheapen
from memsched.torch.compiled.joint import address
from memsched.torch.compiled.look import Loss, forward_of, then
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.private import Boxed, python_code
from memsched.torch.compiled.rewrite import rewrite
from memsched.torch.compiled.special_groups import Unplanned
from memsched.torch.compiled.split import steps_of
from memsched.torch.compiled.unit import Unit
from memsched.torch.errors import CaptureError
from memsched.torch.nests import tensors_of
from memsched.torch.trial import untouched

ALIGNMENT = 64
"""Of PyTorch's own allocator on the CPU: addresses are to be multiples of it."""

Watch = Callable[[fx.Node, Mapping[fx.Node, Any], int], None]
"""Told of each call that has run, of the values that are there, and how many events the arena had before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a call.

    Attributes
    ----------
    bytes : int
    name : str or None
        Of a tensor of the graph; empty for memory inside an operation, None for a result that the caller holds.
    place : int
        The offset in the workspace of what is inside.
    """

    bytes: int
    name: str | None = None
    place: int = 0


def _requests(log: Sequence[tuple[int, int]], tensors_at: Mapping[int, str]) -> tuple[Request, ...]:
    """The requests of a call, given where its tensors lie; what is inside lies as low in the workspace as it fits."""
    requests: list[Request] = []
    alive: dict[int, int] = {}  # address -> the request whose memory it is
    ends: dict[int, int] = {}  # of requests that are given back before the call ends
    starts = [moment for moment, (_, nbytes) in enumerate(log) if nbytes]
    for moment, (where, nbytes) in enumerate(log):
        if nbytes:
            alive[where] = len(requests)
            requests.append(Request(bytes=nbytes))
        elif where in alive:
            ends[alive.pop(where)] = moment
    for where, number in alive.items():
        requests[number] = replace(requests[number], name=tensors_at.get(where))
    held: dict[int, tuple[int, int]] = {}
    for number in sorted(ends):
        held = {other: place for other, place in held.items() if ends[other] > starts[number]}
        nbytes = requests[number].bytes
        at = first_fit(sorted(held.values()), nbytes)
        held[number] = (at, at + nbytes)
        requests[number] = Request(bytes=nbytes, name="", place=at)
    return tuple(requests)


def first_fit(held: Sequence[tuple[int, int]], nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The lowest aligned address of a free range; what is held is sorted."""
    at = 0
    for low, high in held:
        if at + nbytes <= low:
            break
        at = max(at, -(-high // alignment) * alignment)
    return at


class _Switched(Unplanned):
    """A group whose graph keeps everything, until it is told what to run."""

    def __init__(self) -> None:
        super().__init__(Options(budget="100%"))
        self.forward: Boxed | None = None
        self.backward: Boxed | None = None

    def _alone(self, unit: Unit, call: Any, key: Any) -> int:
        plain = unit.versions[unit.as_traced()]

        def forward(args: list[Any]) -> Sequence[Any]:
            return (self.forward or plain.forward)(args)

        def backward(args: list[Any]) -> Sequence[Any]:
            return (self.backward or plain.backward)(args)

        unit.versions.append(replace(plain, forward=forward, backward=backward))
        return len(unit.versions) - 1


class _Watched(fx.Interpreter):
    """Runs a graph as its generated code does, call by call."""

    def __init__(self, module: fx.GraphModule, watch: Watch) -> None:
        super().__init__(module)
        self._watch = watch

    def run_node(self, n: fx.Node) -> Any:
        before = cpu().number_of_events()
        value = super().run_node(n)
        if n.op.startswith("call_"):
            self._watch(n, {**self.env, n: value}, before)
        return value

    def boxed_run(self, args_list: list[Any]) -> Any:
        try:
            return super().boxed_run(args_list)
        finally:
            self.env.clear()


def _key(node: fx.Node) -> int:
    """Of a call, the same in every graph that it is written to: all share its example."""
    return id(node.meta.get("val"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """The forward or the backward of a step in the order of a schedule.

    Attributes
    ----------
    module : GraphModule
    code : callable
    asked : dict
        For each call of the graph bytes and address of what it asks for; the address is PASS for results.
    requests : Requests
        The same in one list.
    """

    module: fx.GraphModule
    code: Boxed
    asked: Mapping[fx.Node, Sequence[tuple[int, int]]]
    requests: Requests

    def runs(self, *, in_arena: bool = True, watch: Watch | None = None) -> Boxed:
        """What runs it: its code, or the same call by call if it is watched."""
        code = self.code if watch is None else _Watched(self.module, watch).boxed_run

        def run(args: list[Any]) -> Sequence[Any]:
            arena.expect(self.requests if in_arena else None)
            try:
                return code(args)
            finally:
                arena.expect(None)

        return run


class ArenaStep:
    """The step of a model, and its graph with the memory that operations take for themselves as their workspace.

    Parameters
    ----------
    model : Module
        On the CPU, in train mode. It is left as it was.
    args : sequence
        Its inputs.
    loss : callable
        From the model's result to a scalar.

    Attributes
    ----------
    model, args
    plain : Graph
        The step as planners see it elsewhere.
    graph : Graph
        To be planned, with addresses that are multiples of ALIGNMENT.
    requests : dict
        What each call asks for, in order.

    Raises
    ------
    CaptureError
        The step is not captured as one graph, or takes other memory than was traced.
    """

    def __init__(self, model: torch.nn.Module, args: Sequence[Any], loss: Loss) -> None:
        self.model, self.args = model, tuple(args)
        self._group = _Switched()
        self._call = torch.compile(then(forward_of(model), loss), backend=backend_of(self._group), dynamic=False)
        self._try()  # libraries make what they keep
        visits, returns, resident = self._group.seen()
        if len(visits) != 1:
            raise CaptureError(f"the step is captured as {len(visits)} graphs, and only one can lie in an arena")
        self._visit, joint = visits[0], visits[0].joint
        self.plain = step_graph(visits, returns, [[Cost(1.0)] * len(joint.operations)], resident=resident.total)
        self._bytes = {tensor["name"]: tensor["size"] for tensor in self.plain.tensors if tensor["size"]}
        self._names = {
            address(one): name_of(joint, number)
            for base in (storage.base for storage in joint.storages)
            for one, number in zip(tensors_of(base.meta["val"]), joint.storages_of(base), strict=True)
        }
        joint.looked_at = None  # a request of a call that lays out a result anew would have no name
        self.requests = self._rehearse()
        inside = {
            op.node.name: [one.place + one.bytes for one in self.requests[_key(op.node)] if one.name == ""]
            for op in joint.operations
        }
        document = self.plain.to_json()
        for op in document["ops"]:
            for choice in op["choices"]:
                choice["workspace"] = max(choice["workspace"], *inside.get(op["name"], ()), 0)
        self.graph = ms.Graph.from_json(document)

    def places(self, node: fx.Node, value: Any) -> Iterator[tuple[str, torch.UntypedStorage]]:
        """The tensors of the graph in which the value of a node lies, and where they are."""
        for example, one in zip(tensors_of(node.meta["val"]), tensors_of(value), strict=True):
            name = self._names[address(example)]
            if name in self._bytes:
                yield name, one.untyped_storage()

    def halves(self, schedule: ms.Schedule) -> tuple[Half, Half]:
        """Forward and backward in the order of a schedule of the graph.

        It must run every operation once and have addresses, and nothing may travel.
        """
        steps = schedule.steps
        at = {step["run"]: step.get("at", {}) for step in steps if "run" in step}
        assert all("run" in step or "free" in step for step in steps), "a step in an arena keeps all its tensors there"
        assert len(at) == len(self.graph.ops) == sum("run" in step for step in steps), "it runs every operation once"
        places = {_key(op.node): at[op.node.name] for op in self._visit.joint.operations}

        def half(module: fx.GraphModule) -> Half:
            code = python_code(module)
            asked: dict[fx.Node, list[tuple[int, int]]] = {}
            for node in module.graph.nodes:
                if node.op.startswith("call_"):
                    asked[node] = [
                        (one.bytes, PASS if one.name is None else places[_key(node)][one.name] + one.place)
                        for one in self.requests[_key(node)]
                    ]
            return Half(module=module, code=code, asked=asked, requests=Requests([*chain(*asked.values())]))

        forward, backward = self._written(steps)
        return half(forward), half(backward)

    def take(self, halves: tuple[Half, Half], *, in_arena: bool = True, watch: Watch | None = None) -> torch.Tensor:
        """One step, and its loss. The gradients lie in the arena; drop them before the next step.

        Parameters
        ----------
        halves
            In the order of a schedule.
        in_arena : bool
            Requests are served as planned; else by PyTorch's own allocator.
        watch : callable, optional
            Told of each call.
        """
        self._group.forward, self._group.backward = (half.runs(in_arena=in_arena, watch=watch) for half in halves)
        value = self._call(*self.args)
        value.backward()
        return value.detach()

    def _try(self) -> None:
        with untouched(self.model, self.args):
            self._call(*self.args).backward()

    def _written(self, steps: Sequence[Step]) -> tuple[fx.GraphModule, fx.GraphModule]:
        made = rewrite(self._visit.joint, *steps_of(steps, 0, 1), self._visit.sizes)
        return made.forward, made.backward

    def _rehearse(self) -> dict[int, tuple[Request, ...]]:
        """Run the step as it was traced, and tell what is asked for."""
        noted: list[tuple[int, int, int, dict[int, str]]] = []

        def watch(node: fx.Node, values: Mapping[fx.Node, Any], before: int) -> None:
            lie = {storage.data_ptr(): name for name, storage in self.places(node, values[node])}
            noted.append((_key(node), before, cpu().number_of_events(), lie))

        modules = self._written([{"run": op["name"]} for op in self.plain.ops])
        for module in modules:
            cheapen(module.graph)  # as in generated code
        self._group.forward, self._group.backward = (_Watched(module, watch).boxed_run for module in modules)
        with arena.watched(recorded=True):
            self._try()
        log = cpu().take_events()
        found = {key: _requests(log[before:after], lie) for key, before, after, lie in noted}
        given = {one.name: one.bytes for asked in found.values() for one in asked if one.name}
        if given != self._bytes:
            name = min(name for name in {*given, *self._bytes} if given.get(name) != self._bytes.get(name))
            raise CaptureError(f"{name} takes {given.get(name)} bytes, and was traced with {self._bytes.get(name)}")
        return found
