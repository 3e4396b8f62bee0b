"""A planned training step whose tensors lie in one block of memory, at the addresses of its schedule; on the CPU.

OLLA serves the k-th request of a step at the k-th planned address (section 3.5 of the paper). Here the step is
rehearsed once to learn what its k-th request is for: a tensor of the graph, a result that stays when the step ends, or
memory that a kernel takes for itself. The last kind lies in the workspace that the schedule places. Results are no part
of a plan, so PyTorch's own allocator serves them. What libraries take from the system themselves nobody sees.

On CUDA a pluggable allocator with a pool of its own would do the same; that is not built here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from bench.native import arena
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.torch.graph_step.as_graph import as_graph, op_names, tensor_names
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.inputs import own_inputs, replaced
from memsched.torch.graph_step.interpret import Pass
from memsched.torch.graph_step.program import Program
from memsched.torch.graph_step.resolve import key_of, resolve
from memsched.torch.graph_step.runner import StepRunner
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.script import Action

ALIGNMENT = 64
"""Of PyTorch's own allocator on the CPU: addresses are to be multiples of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of an operation.

    Attributes
    ----------
    bytes : int
    kind : str
        A tensor of the graph, a result that stays when the step ends, or memory inside the operation.
    place : int
        The block of a tensor; the offset in the workspace of what is inside.
    """

    bytes: int
    kind: Literal["tensor", "result", "inside"]
    place: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What each operation asks for, in order, and the bytes of workspace that its own memory takes."""

    requests: tuple[tuple[Request, ...], ...]
    workspaces: tuple[int, ...]


def rehearse(captured: CapturedStep, args: Sequence[Any]) -> Rehearsal:
    """Run a step twice, the first time to let libraries make what they keep. The model is left as it was."""
    program, model = captured.program, captured.model
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", enabled=False):
        for _ in range(2):
            tensors = [leaf for leaf in pytree.tree_leaves(tuple(args)) if isinstance(leaf, torch.Tensor)]
            listener = _Listener(program)
            one = Pass(
                program,
                resolve(program, captured.graph, _plain(captured.graph)),
                [*model.parameters(), *model.buffers()],
                own_inputs(list(dict.fromkeys(tensors))),
                gradients=listener,
                lanes=EmulatedLanes(poison=False),
                host=torch.empty(0, dtype=torch.uint8),
                observer=listener,
            )
            listener.slots = one._transfers.slots
            with arena.watched(recorded=True):
                one.run()
                log = arena.events()
    found = [_requests(log[begin:end], tensors) for begin, end, tensors in listener.found]
    return Rehearsal(requests=tuple(requests for requests, _ in found), workspaces=tuple(most for _, most in found))


def _plain(graph: ms.Graph) -> ms.Schedule:
    """All operations as they are listed, and nothing is given back."""
    most = max(int(op["choices"][0]["workspace"]) for op in graph.ops)
    return ms.Schedule.from_json(
        {
            "format": "memsched-plan/1",
            "graph": graph.name,
            "chunk": None,
            "rounds": [[graph.batch, 1]],
            "budget": graph.resident + most + sum(int(tensor["size"]) for tensor in graph.tensors),
            "memory": "fluid",
            "planner": {"name": "plain"},
            "steps": [{"run": op["name"]} for op in graph.ops],
        }
    )


class _Listener:
    """An observer that keeps all gradients, and writes down which events are whose and where the tensors lie."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots: Any = None
        self.gradients: list[torch.Tensor] = []
        self.begin = 0
        self.found: list[tuple[int, int, dict[int, int]]] = []

    def add(self, name: str, gradient: torch.Tensor) -> None:
        self.gradients.append(gradient)

    def before(self, step: int, action: Action) -> None:
        self.begin = arena.number_of_events()

    def after(self, step: int, action: Action, event: Any) -> None:
        end = arena.number_of_events()
        makes = [number for number in self.program.operations[action.stage].makes if key_of(number) in self.slots]
        blocks = {number: self.slots[key_of(number)].storage for number in makes}
        self.found.append((self.begin, end, {s.data_ptr(): n for n, s in blocks.items() if s.nbytes()}))


def _requests(log: Sequence[tuple[int, int]], tensors: dict[int, int]) -> tuple[tuple[Request, ...], int]:
    """The requests of one operation, given where its tensors lie, and the bytes that all inside take together.

    What is inside lies as low in the workspace as it fits.
    """
    requests: list[Request] = []
    alive: dict[int, int] = {}  # address -> the request whose memory it is
    ends: dict[int, int] = {}  # of requests that are given back before the operation ends
    for moment, (address, nbytes) in enumerate(log):
        if nbytes:
            alive[address] = len(requests)
            requests.append(Request(bytes=nbytes, kind="result"))
        elif address in alive:
            ends[alive.pop(address)] = moment
    for address, number in alive.items():
        if address in tensors:
            requests[number] = Request(bytes=requests[number].bytes, kind="tensor", place=tensors[address])
    starts = [moment for moment, (_, nbytes) in enumerate(log) if nbytes]
    held: dict[int, tuple[int, int]] = {}
    most = 0
    for number, request in enumerate(requests):
        if number not in ends:
            continue
        held = {other: place for other, place in held.items() if ends[other] > starts[number]}
        at = first_fit(sorted(held.values()), request.bytes)
        held[number] = (at, at + request.bytes)
        most = max(most, at + request.bytes)
        requests[number] = Request(bytes=request.bytes, kind="inside", place=at)
    return tuple(requests), most


def first_fit(held: Sequence[tuple[int, int]], nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The lowest aligned address of a free range; what is held is sorted."""
    at = 0
    for low, high in held:
        if at + nbytes <= low:
            break
        at = max(at, -(-high // alignment) * alignment)
    return at


class ArenaStep:
    """The step of a model, and its graph with the memory that operations take for themselves as their workspace.

    Parameters
    ----------
    captured : CapturedStep
        On the CPU, without rounds.
    args : sequence
        Inputs like those of the capture.

    Attributes
    ----------
    graph : Graph
        To be planned, with addresses that are multiples of ALIGNMENT.
    """

    def __init__(self, captured: CapturedStep, args: Sequence[Any]) -> None:
        self.captured = captured
        self.rehearsal = rehearse(captured, args)
        beside = [int(op["choices"][0]["workspace"]) for op in captured.graph.ops]
        inside = [max(0, most - least) for most, least in zip(self.rehearsal.workspaces, beside, strict=True)]
        self.graph = as_graph(captured.program, name=captured.graph.name, workspaces=inside)

    def runner(self, schedule: ms.Schedule, *, poison: bool = False) -> StepRunner:
        """Runs a schedule of the graph; in the arena if `expect` was called with its requests before each step."""
        device = ms.Device(schedule.budget, 0.0)
        return StepRunner(self.captured, self.graph, schedule, device, EmulatedLanes(poison=poison))

    def inputs(self) -> list[tuple[int, int]]:
        """Bytes and address of each input: they lie at the start, one after the other."""
        pairs, at = [], 0
        for source in self.captured.program.inputs:
            nbytes = self.captured.program.blocks[source.block].bytes
            pairs.append((nbytes, at))
            at += nbytes
        return pairs

    def runs(self, schedule: ms.Schedule) -> list[list[tuple[int, int]]]:
        """For each run bytes and address of what it will ask for; the address is PASS for results.

        The schedule must run every operation once and have addresses, and nothing may travel.
        """
        program = self.captured.program
        ops = op_names(program)
        names, places = tensor_names(program, ops), {name: k for k, name in enumerate(ops)}
        found = []
        for step in schedule.to_json()["steps"]:
            if "run" not in step:
                assert "free" in step, "a step in an arena keeps all its tensors on the device"
                continue
            at = step.get("at", {})
            pairs = []
            for request in self.rehearsal.requests[places[step["run"]]]:
                address = arena.PASS
                if request.kind == "tensor":
                    address = at[names[request.place]]
                elif request.kind == "inside":
                    address = at[""] + request.place
                pairs.append((request.bytes, address))
            found.append(pairs)
        assert len(found) == len(ops), "a step in an arena runs every operation once"
        return found

    def load(self, args: Sequence[Any], requests: arena.Requests | None) -> tuple[Any, ...]:
        """Copies of the inputs; in the arena with the requests of `inputs`."""
        arena.expect(requests)

        def moved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in tensors]

        loaded: tuple[Any, ...] = replaced(tuple(args), moved)
        arena.expect(None)
        return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorTimes:
    """A step of one schedule with PyTorch's own allocator and in an arena; medians.

    Attributes
    ----------
    default_step, arena_step : float
        Seconds of a step, nothing else measured.
    calls, planned : int
        Requests of a step, and those among them that the arena serves.
    default_allocator, arena_allocator : float
        Seconds that a step spends in the allocator, allocating and giving back, without the clock's own.
    arena_bytes : int
    """

    default_step: float
    arena_step: float
    calls: int
    planned: int
    default_allocator: float
    arena_allocator: float
    arena_bytes: int


def allocator_times(step: ArenaStep, schedule: ms.Schedule, args: Sequence[Any], *, repeat: int = 20) -> AllocatorTimes:
    """Measure both, by turns. Gradients and buffers of the model change.

    Parameters
    ----------
    step : ArenaStep
    schedule : Schedule
        Of step.graph, with addresses.
    args : sequence
        Inputs of the step.
    repeat : int
        Timed steps of each kind, after one that is not.
    """
    runner, model = step.runner(schedule), step.captured.model
    height = schedule.budget - step.graph.resident
    inputs = arena.Requests(step.inputs())
    requests = arena.Requests([pair for run in step.runs(schedule) for pair in run])
    arena.make(height)

    def one(in_arena: bool, timed: bool) -> tuple[float, arena.Counts]:
        model.zero_grad(set_to_none=True)
        with arena.watched(timed=timed):
            given = list(step.load(args, inputs if in_arena else None))
            arena.expect(requests if in_arena else None)
            before, start = arena.counts(), time.perf_counter()
            runner.take(given)
            seconds, after = time.perf_counter() - start, arena.counts()
        spent = after.allocating + after.giving_back - before.allocating - before.giving_back
        calls = after.calls - before.calls + after.given_back - before.given_back
        assert after.strange == (0, 0), "the step asks for other memory than when it was rehearsed"
        return (spent - calls * clock if timed else seconds), after

    clock = arena.clock_seconds()
    found: dict[tuple[bool, bool], list[float]] = {}
    for turn in range(repeat + 1):
        for kind in ((False, False), (True, False), (False, True), (True, True)):
            value, counts = one(*kind)
            if turn:
                found.setdefault(kind, []).append(value)
    model.zero_grad(set_to_none=True)
    return AllocatorTimes(
        default_step=median(found[False, False]),
        arena_step=median(found[True, False]),
        calls=counts.calls,
        planned=counts.planned[0],
        default_allocator=max(0.0, median(found[False, True])),
        arena_allocator=max(0.0, median(found[True, True])),
        arena_bytes=height,
    )
