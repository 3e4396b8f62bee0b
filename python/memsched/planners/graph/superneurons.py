"""SuperNeurons (Wang et al., 2018): liveness, a cache of tensors, and recomputation by segments."""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from memsched._core import Device, Graph, Schedule
from memsched.errors import LimitError
from memsched.planners.call import begin, without_link
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem, graph_of, least_of, peak_of, simulate
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Quantity

# What is dear to run again: convolutions and matrix products, as formulas and as PyTorch call them; a chain's stages.
_DEAR = ("conv", "convolution", "fc", "mm", "addmm", "bmm", "baddbmm", "stage")

_MOST_RUNS = 1 << 18  # of a plan: about 10 s
_OVER = "superneurons found no plan in time; raise time_limit"

Strategy = Literal["cost", "speed", "memory"]


class _NoRoomError(Exception):
    """What the next step needs does not fit, and nothing may leave."""


@dataclass(frozen=True)
class _Net:
    """What the runtime knows of a graph: its ops by number, and until when each tensor is wanted."""

    ops: list[dict[str, Any]]
    sizes: dict[str, int]
    turn: int  # the number of the first op of the backward
    cheap: list[bool]  # whether an op of the forward may run again
    writer: dict[str, int]
    last_forward: dict[str, int]  # the last op of the forward that writes or reads a tensor
    last: dict[str, int]  # the last op that reads it, or what is made again of it; -1: none

    @classmethod
    def of(cls, ops: list[dict[str, Any]], tensors: list[dict[str, Any]], *, recompute: bool) -> _Net:
        turn = next((at for at, op in enumerate(ops) if op["phase"] == "bwd"), len(ops))
        cheap = [
            recompute and at < turn and op["kind"] not in _DEAR and not op.get("once") for at, op in enumerate(ops)
        ]
        last = {one["name"]: -1 for one in tensors}
        forward: dict[str, int] = {}
        for at, op in enumerate(ops):
            for name in (*op["writes"], *op["reads"]):
                last[name] = at
                if at < turn:
                    forward[name] = at
        for op, again in zip(reversed(ops[:turn]), reversed(cheap[:turn]), strict=True):
            until = max((last[name] for name in op["writes"]), default=-1)
            if again and until >= turn:
                last |= {name: max(last[name], until) for name in op["reads"]}
        sizes = {one["name"]: int(one["size"]) for one in tensors}
        writer = {name: at for at, op in enumerate(ops) for name in op["writes"]}
        return cls(ops, sizes, turn, cheap, writer, forward, last)

    def runs_again(self, name: str) -> bool:
        """Whether a tensor can be made again by its writer."""
        at = self.writer.get(name)
        return at is not None and self.cheap[at]

    def total(self, names: Iterable[str]) -> int:
        return sum(self.sizes[name] for name in names)

    def frugal(self, strategy: Strategy) -> set[int]:
        """The ops of segments whose tensors are dropped after each use (memory-centric), not kept until the last.

        A segment is what runs again together: ops between dear ones. With the strategy "cost" it is dropped where all
        that it writes is more than the largest need of an op in the backward.
        """
        segment = list(range(self.turn))  # of each op: the first op of its segment
        for at, op in enumerate(self.ops[: self.turn]):
            if self.cheap[at]:
                before = {_first(segment, self.writer[name]) for name in op["reads"] if self.runs_again(name)}
                for one in before:
                    segment[max(one, _first(segment, at))] = min(one, _first(segment, at))
        written: Counter[int] = Counter()
        for at, op in enumerate(self.ops[: self.turn]):
            written[_first(segment, at)] += self.total(op["writes"]) if self.cheap[at] else 0
        most = max((self.total({*op["reads"], *op["writes"]}) for op in self.ops[self.turn :]), default=0)
        limit = {"cost": most, "speed": math.inf, "memory": -1}[strategy]
        return {at for at in range(self.turn) if written[_first(segment, at)] > limit}


def _first(segment: list[int], at: int) -> int:
    while segment[at] != at:
        segment[at] = segment[segment[at]]
        at = segment[at]
    return at


@dataclass
class _Runtime:
    """One training step under SuperNeurons, as a list of steps."""

    net: _Net
    capacity: int  # bytes
    host_room: float  # bytes of the host that are left; 0 without a link
    cached: bool  # tensors leave when room is needed, the least recently used first; else dear ones when written
    frugal: Set[int]
    until: float
    steps: list[dict[str, Any]] = field(default_factory=list)
    held: OrderedDict[str, None] = field(default_factory=OrderedDict)  # on the device, the latest used last
    host: set[str] = field(default_factory=set)
    wanted: Counter[str] = field(default_factory=Counter)  # by runs that are sure to come next
    at: int = 0  # the op that runs, or for which others run again
    live: int = 0
    runs: int = 0

    def step(self, inputs: Iterable[str]) -> list[dict[str, Any]]:
        """Run all ops; `inputs` are on the device at time 0."""
        net = self.net
        for name in inputs:
            self._hold(name)
        for name in [name for name in self.held if net.last[name] < 0]:
            self._free(name)
        calls = [at for at, op in enumerate(net.ops) if at >= net.turn and any(map(self._is_dear, op["reads"]))]
        for at, op in enumerate(net.ops):
            if time.perf_counter() > self.until:
                raise LimitError(_OVER)
            self.at = at
            made = self._make_again(at)
            self._run(at)
            for name in dict.fromkeys((*op["reads"], *op["writes"], *made)):
                again = net.runs_again(name)
                dropped = again and at < net.turn and net.last_forward[name] == at
                frugal = name in made and net.writer[name] in self.frugal
                if name in self.held and (net.last[name] <= at or dropped or frugal):
                    self._free(name)
            if not self.cached and at < net.turn:
                self._send(op, at)
            here = bisect_right(calls, at)
            if here and calls[here - 1] == at and here < len(calls):
                self._fetch_ahead(calls[here])
        return self.steps

    def _is_dear(self, name: str) -> bool:
        at = self.net.writer.get(name, self.net.turn)
        return at < self.net.turn and self.net.ops[at]["kind"] in _DEAR

    def _make_again(self, at: int) -> dict[str, None]:
        """Run again what an op reads and nobody has; returns what was made, in order."""
        net, ops = self.net, self.net.ops
        found, missing = set[int](), [*ops[at]["reads"]]
        while missing:
            name = missing.pop()
            if name not in self.held and name not in self.host and net.writer[name] not in found:
                found.add(net.writer[name])
                missing += ops[net.writer[name]]["reads"]
        order, made = sorted(found), dict[str, None]()
        self.wanted = Counter(name for one in (*order, at) for name in ops[one]["reads"])
        for one in order:
            self._run(one)
            self.wanted.subtract(ops[one]["reads"])
            made |= dict.fromkeys(ops[one]["writes"])
            for name in dict.fromkeys((*ops[one]["writes"], *ops[one]["reads"])):
                over = name in made and (net.last[name] < at or net.writer[name] in self.frugal)
                if over and name in self.held and not self.wanted[name]:
                    self._free(name)
        return made

    def _run(self, at: int) -> None:
        self.runs += 1
        if self.runs > _MOST_RUNS:
            raise LimitError(f"superneurons has no plan of at most {_MOST_RUNS:,} runs; strategy='speed' needs fewer")
        op, sizes = self.net.ops[at], self.net.sizes
        locked = {*op["reads"], *op["writes"]}
        for name in op["reads"]:
            if name not in self.held:
                self._make_room(sizes[name], locked)
                self._fetch(name)
            self.held.move_to_end(name)
        tape, last = op.get("tape", ()), self.net.last
        writes, needs = op["writes"], [one["workspace"] for one in op["choices"]]
        skip = bool(tape) and all(last[name] <= self.at and not self.wanted[name] for name in tape)
        if skip:
            rest = [name for name in writes if name not in tape]
            lean = [op.get("skip_workspace", need) for need in needs]
            skip = self.net.total(rest) + min(lean) <= self.net.total(writes) + min(needs)
            writes, needs = (rest, lean) if skip else (writes, needs)
        for name in op["writes"]:
            if name in self.held:  # another output of an op that runs again
                self._free(name)
        written = self.net.total(writes)
        self._make_room(written + min(needs), locked)
        room = self.capacity - self.live - written
        fitting = [one for one, need in zip(op["choices"], needs, strict=True) if need <= room]
        best = min(fitting, key=lambda one: float(one["time"]))
        alg = {"alg": best["alg"]} if len(needs) > 1 else {}
        self.steps.append({"run": op["name"], **alg, **({"skip": [*tape]} if skip else {})})
        for name in writes:
            self._hold(name)

    def _make_room(self, count: int, locked: Set[str]) -> None:
        while self.live + count > self.capacity:
            for name in self.held:
                if name not in locked and self._leaves(name):
                    break
            else:
                raise _NoRoomError

    def _leaves(self, name: str) -> bool:
        """Let a tensor leave the device, if it can come back."""
        size = self.net.sizes[name]
        cheap = self.at >= self.net.turn and self.net.runs_again(name) and not self.wanted[name]
        if size == 0 or (name not in self.host and not cheap and size > self.host_room):
            return False
        if name not in self.host and not cheap:
            self._offload(name)
        self._free(name)
        return True

    def _send(self, op: dict[str, Any], at: int) -> None:
        """Without a cache: what a dear op of the forward wrote leaves at once, and is freed after its last reader."""
        net = self.net
        for name in op["writes"]:
            room = 0 < net.sizes[name] <= self.host_room and name in self.held and name not in self.host
            if room and self._is_dear(name) and net.last[name] >= net.turn:
                self._offload(name)
        for name in dict.fromkeys((*op["reads"], *op["writes"])):
            if name in self.host and name in self.held and net.last_forward[name] == at:
                self._free(name)

    def _fetch_ahead(self, at: int) -> None:
        """Fetch what a later op reads, as far as there is room."""
        for name in self.net.ops[at]["reads"]:
            if name in self.host and name not in self.held and self.live + self.net.sizes[name] <= self.capacity:
                self._fetch(name)

    def _hold(self, name: str) -> None:
        self.held[name] = None
        self.live += self.net.sizes[name]

    def _free(self, name: str) -> None:
        self.steps.append({"free": name})
        del self.held[name]
        self.live -= self.net.sizes[name]

    def _fetch(self, name: str) -> None:
        self.steps.append({"prefetch": name})
        self._hold(name)

    def _offload(self, name: str) -> None:
        self.steps.append({"offload": name})
        self.host.add(name)
        self.host_room -= self.net.sizes[name]


def _planned(graph: Graph, device: Device, strategy: Strategy, until: float, told: dict[str, Any]) -> list[Schedule]:
    """The plans with and without a cache and recomputation, as far as there are any."""
    ops, tensors = graph.ops, graph.tensors
    inputs = [one["name"] for one in tensors if one["role"] in ("input", "weight")]
    linked = not without_link(device, sum(one["size"] for one in tensors), 4 * len(tensors))
    host = math.inf if device.host_memory is None else device.host_memory
    found: list[Schedule] = []
    for recompute, cached in itertools.product((False, True), (True, False)):
        net = _Net.of(ops, tensors, recompute=recompute)
        made = _Runtime(net, device.memory - graph.resident, host if linked else 0, cached, net.frugal(strategy), until)
        try:
            steps = made.step(inputs)
        except _NoRoomError:
            continue
        except LimitError:
            if found:
                break
            raise
        planner = {**told, "recompute": recompute, "cache": cached}
        rounds = [(graph.batch, 1)]
        found.append(Schedule(steps, budget=device.memory, graph=graph.name, planner=planner, rounds=rounds))
    return found


@Planner(
    "a cache of tensors, the least recently used leaves; what is cheap runs again by segments",
    needs=lambda problem: least_of(graph_of(problem)),
    problems=("graph",),
    recomputes=True,
    seconds_an_op=(2.5e-5, 2.5e-5),
    by_name="for comparison with its paper",
)
def superneurons(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    strategy: Strategy = "cost",
    time_limit: Quantity | None = None,
) -> Result:
    """Plan as the runtime of SuperNeurons acts: op by op, from what is on the device at that moment.

    Liveness: a tensor is freed after the last op that wants it. Cache: where an op has no room, the least recently used
    tensors leave for the host; without the cache, the outputs of dear ops leave when they are written, and are fetched
    back one dear op ahead, where there is room. Dear are convolutions and matrix products. Recomputation: the outputs
    of other ops of the forward are dropped after their last use there, and a segment of them, up to the nearest dear
    ones, runs again when the backward reads one. An op takes its fastest algorithm whose workspace fits at that moment.
    The fastest of four plans counts: with and without the cache and recomputation. A segment of k ops that is dropped
    after each use runs k (k + 1) / 2 ops again; a plan of more than 2^18 runs is left out.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
        For a family: its graph at full batch. The stages of a chain are all dear.
    strategy : str
        "speed": what ran again is kept until its last use. "memory": it is dropped after each use. "cost": the second
        for segments that hold more bytes than any one op of the backward needs, the first for others.
    time_limit : float or str, optional
        Seconds; 0 or None for no limit.

    Returns
    -------
    Result
        params["cache"] and params["recompute"] say which of the four plans it is.

    Raises
    ------
    InfeasibleError
        Some op needs more than M bytes; or, without a link or with a small host, something that must leave cannot:
        then `.min_memory` is the plain peak, but less may do.
    LimitError
        The time is over before there is a plan.

    References
    ----------
    Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018, section 3.
    `by_kind` is what the authors of PoocH compare with under this name.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.load_graph("resnet50-224-b32")
    >>> result = ms.superneurons(graph, "40%", "12GB/s")
    >>> result.params["recompute"], len(result.recomputed) > 0
    (True, True)
    """
    call = begin(superneurons, problem, M, beta, device)
    limit, graph = quantities.time_limit(time_limit), call.graph
    checks.choice("strategy", strategy, get_args(Strategy))
    until = call.until(limit or None)
    least = least_of(graph)
    if call.device.memory < least:
        linked = min(call.device.d2h, call.device.h2d) > 0 and call.device.host_memory is None
        raise call.no_plan(least if linked else peak_of(graph), "some op does not fit", enough=not linked)
    found = _planned(graph, call.device, strategy, until, {"name": "superneurons", "strategy": strategy})
    if not found:
        raise call.no_plan(peak_of(graph), "something must leave that the link or the host cannot take", enough=True)
    best = min(found, key=lambda one: simulate(graph, one, call.device).makespan)
    chosen = {key: best.planner[key] for key in ("strategy", "recompute", "cache")}
    return call.result(chosen, best)
