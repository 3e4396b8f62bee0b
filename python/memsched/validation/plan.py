"""Check schedules independently of the simulator: naive, plain Python, on the JSON forms alone.

A schedule is checked three times. The *replay* goes through the list of steps once and proves that it is legal and
keeps its budget whatever the durations are. The *execution* plays the steps against a clock, with one queue per
stream and a memory test at every event. The *interval check* looks only at the resulting intervals: streams are
exclusive and in order, data is complete before it is used, and bytes (or address ranges) stay within the budget.

This is one long file on purpose: whoever distrusts a plan can read everything that judges it in one go.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NoReturn

from memsched.errors import InvalidInputError, ScheduleError
from memsched.validation.bounds import bound_of_all, bound_of_once
from memsched.validation.result import ROUNDING, Stay, check_result

Json = Mapping[str, Any]
_FIELDS = {"run": "alg at skip after", "offload": "after", "prefetch": "at after", "free": ""}
_PLAN_KEYS = {"format", "planner", "graph", "chunk", "rounds", "budget", "memory", "steps"}
_AT_TIME_0 = -1  # the "step" that brings input and weight tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """The findings of the checker, in seconds and bytes, summed over all rounds; start and end are of one round.

    Both peaks include the resident bytes: peak_memory is the peak over time, logical_peak the peak over the list in
    order. compute_time includes recompute_time.

    lower_bound is what the checker could derive itself. If bound_on is "all", no plan is faster (of a family, in the
    same rounds); if it is "once", no plan that runs each op once in graph order is. claimed_lower_bound is the bound in
    a result; a plan alone claims none.
    """

    makespan: float
    peak_memory: int
    logical_peak: int
    compute_time: float
    recompute_time: float
    bytes_out: int
    bytes_in: int
    recomputed: tuple[str, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    lower_bound: float = 0.0
    bound_on: str = "all"
    claimed_lower_bound: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the checker could derive the full bound that the result claims."""
        return self.claimed_lower_bound is None or self.claimed_lower_bound <= self.lower_bound * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """Whether the derived lower_bound proves that no plan covered by it is faster."""
        bound = max(self.lower_bound, self.claimed_lower_bound or 0.0) if self.proven else self.lower_bound
        return self.makespan <= bound * (1 + 1e-12)


@dataclass(slots=True, eq=False)
class _Buffer:
    """A tensor or a workspace (name "") on the device from the start of step `born` to the end of `dies`."""

    name: str
    bytes: int
    born: int
    dies: int | None = None
    low: int = 0  # address, in contiguous plans
    touched: list[int] = field(default_factory=list)  # steps that must end before it is freed

    def overlaps(self, other: _Buffer) -> bool:
        return max(self.low, other.low) < min(self.low + self.bytes, other.low + other.bytes)


@dataclass(slots=True)
class _Step:
    """A step that waits for the start of the run `issue` and for the ends of `waits`."""

    verb: str
    name: str
    issue: int
    stream: str = ""
    seconds: float = 0.0
    reads: Sequence[str] = ()
    waits: list[int] = field(default_factory=list)
    births: list[_Buffer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a plan holds: bytes after each event, and the lifetime of each buffer in steps."""

    memory: list[tuple[float, int]]
    stays: list[Stay]


class _Sums:
    """A Fenwick tree: numbers by index, initially 0, with fast prefix sums."""

    def __init__(self, count: int) -> None:
        self.tree = [0] * (count + 1)

    def add(self, index: int, value: int) -> None:
        at = index + 1
        while at < len(self.tree):
            self.tree[at] += value
            at += at & -at

    def before(self, index: int) -> int:
        total, at = 0, index
        while at > 0:
            total += self.tree[at]
            at -= at & -at
        return total


class _Arena:
    """Buffers that do not overlap, sorted by address; a new one can only conflict with its neighbours."""

    def __init__(self) -> None:
        self.buffers: list[_Buffer] = []

    def takes(self, buffer: _Buffer) -> bool:
        """Add a buffer if it overlaps none, and return whether it does not. Empty buffers overlap nothing."""
        at = bisect_left(self.buffers, buffer.low, key=_low)
        if any(buffer.overlaps(other) for other in self.buffers[max(0, at - 1) : at + 1]):
            return False
        if buffer.bytes:
            self.buffers.insert(at, buffer)
        return True

    def drop(self, buffer: _Buffer) -> None:
        if buffer.bytes:
            del self.buffers[bisect_left(self.buffers, buffer.low, key=_low)]


def _low(buffer: _Buffer) -> int:
    return buffer.low


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _Replay:
    """One pass over the list of steps in order, without a clock."""

    def __init__(self, graph: Json, plan: Json, device: Json) -> None:
        self.tensors: dict[str, int] = {tensor["name"]: tensor["size"] for tensor in graph["tensors"]}
        self.ops: dict[str, Json] = {op["name"]: op for op in graph["ops"]}
        self.budget: int = min(plan["budget"], device["memory"])
        self.capacity: int = self.budget - graph.get("resident", 0)
        self.contiguous = plan["memory"] == "contiguous"
        self.rate = {"offload": float(device.get("d2h") or 0), "prefetch": float(device.get("h2d") or 0)}
        self.latency, self.duplex = float(device.get("latency") or 0), bool(device.get("duplex"))
        self.host_memory = device.get("host_memory")
        self.steps: list[_Step] = []
        self.buffers: list[_Buffer] = []
        self.on_device: dict[str, _Buffer] = {}
        self.on_host: dict[str, int] = {}  # tensor -> its first offload
        self.host_bytes = 0
        self.runs: dict[str, list[int]] = {}
        self.last_run = _AT_TIME_0
        self.arena = _Arena()  # contents of the device, in contiguous plans
        self.live = self.peak = 0  # bytes in list order, without resident
        for tensor in graph["tensors"]:
            if tensor["role"] in ("input", "weight"):  # packed from address 0, in the order of the graph
                self.hold(buffer := _Buffer(tensor["name"], tensor["size"], _AT_TIME_0, low=self.live))
                self.arena.takes(buffer)
        if self.live > self.capacity:
            need = self.live - self.capacity + self.budget
            raise ScheduleError(f"At time 0 there are {need} bytes, the budget is {self.budget}; raise it.")
        for raw in plan["steps"]:
            self.add(raw)
        for name in self.ops:
            if name not in self.runs:
                raise ScheduleError(f"Op {name!r} never runs; add a run step for it.")

    def fail(self, text: str) -> NoReturn:
        index, step = len(self.steps) - 1, self.steps[-1]
        raise ScheduleError(f"Step {index} ({step.verb} {step.name}): {text}", index)

    def hold(self, buffer: _Buffer) -> None:
        self.buffers.append(buffer)
        self.live += buffer.bytes
        self.peak = max(self.peak, self.live)
        if buffer.name:
            self.on_device[buffer.name] = buffer

    def add(self, raw: Any) -> None:
        """Check the fields that all steps share, then apply the step."""
        index = len(self.steps)
        verbs = [verb for verb in _FIELDS if verb in raw] if isinstance(raw, Mapping) else []
        if len(verbs) != 1:
            found = " and ".join(verbs) or "no verb"
            raise ScheduleError(f"Step {index} has {found}; give exactly one of {', '.join(_FIELDS)}.", index)
        verb, name = verbs[0], raw[verbs[0]]
        self.steps.append(_Step(verb, str(name), self.last_run))
        if not isinstance(name, str) or name not in (self.ops if verb == "run" else self.tensors):
            kind = "op" if verb == "run" else "tensor"
            self.fail(f"{verb} is {name!r}, which is no {kind} of the graph; give the name of one.")
        for key in raw:
            if key != verb and key not in _FIELDS[verb].split():
                self.fail(f"field {key!r} is unknown; drop it, {verb} takes {_FIELDS[verb] or 'no other'}.")
        after = raw.get("after", [])
        if not isinstance(after, (list, tuple)) or not all(_is_int(at) and at < index for at in after):
            self.fail(f"after is {after!r}; give a list of indices of earlier steps, 0 to {index - 1}.")
        if "at" in raw and not self.contiguous:
            self.fail('at is given in a fluid plan; drop it or set "memory": "contiguous".')
        self.steps[-1].waits.extend(after)
        if verb == "run":
            self.run(index, name, raw)
        elif verb == "free":
            self.free(index, name)
        else:
            self.transfer(index, name, raw)

    def run(self, index: int, name: str, raw: Json) -> None:
        op, step = self.ops[name], self.steps[index]
        if op.get("once") and name in self.runs:
            self.fail(f"the op may run once only and did at step {self.runs[name][0]}; drop one of the two.")
        choices = {choice["alg"]: choice for choice in op["choices"]}
        alg = raw.get("alg", next(iter(choices)) if len(choices) == 1 else None)
        if not isinstance(alg, str) or alg not in choices:
            self.fail(f"alg is {raw.get('alg', 'missing')!r}; give one of {', '.join(choices)}.")
        skip, tape = raw.get("skip", []), op.get("tape", [])
        if not isinstance(skip, (list, tuple)) or (skip and sorted(map(str, skip)) != sorted(tape)):
            self.fail(f"skip is {skip!r}; skip nothing or the whole tape of the op, {list(tape)!r}.")
        for tensor in dict.fromkeys(op["reads"]):
            self.touch(index, tensor)
        births = [_Buffer(name, self.tensors[name], index) for name in op["writes"] if name not in skip]
        for buffer in births:
            if buffer.name in self.on_device:
                self.fail(f"its output {buffer.name!r} is already on the device; free it first.")
        workspace: int = choices[alg]["workspace"]
        workspace = op.get("skip_workspace", workspace) if skip else workspace
        scratch = _Buffer("", workspace, index, dies=index)
        self.allocate(index, [*births, scratch], raw.get("at", {}))
        self.live -= workspace
        if self.contiguous:
            self.arena.drop(scratch)
        step.reads, step.stream, step.seconds = op["reads"], "compute", float(choices[alg]["time"])
        self.runs.setdefault(name, []).append(index)
        self.last_run = index

    def transfer(self, index: int, name: str, raw: Json) -> None:
        step, size = self.steps[index], self.tensors[name]
        if self.rate[step.verb] == 0:
            self.fail("the bandwidth of the device in this direction is 0; raise it or drop the transfer.")
        step.seconds = self.latency + size / self.rate[step.verb]
        step.stream = step.verb if self.duplex else "link"
        if step.verb == "offload":
            self.touch(index, name)
            step.reads = [name]
            self.host_bytes += size if name not in self.on_host else 0
            self.on_host.setdefault(name, index)
            if self.host_memory is not None and self.host_bytes > self.host_memory:
                self.fail(f"host copies take {self.host_bytes} bytes, host_memory is {self.host_memory}; offload less.")
            return
        if name not in self.on_host:
            self.fail(f"tensor {name!r} has no host copy; list an offload of it earlier.")
        if name in self.on_device:
            self.fail(f"tensor {name!r} is already on the device; free it first or drop the prefetch.")
        step.waits.append(self.on_host[name])
        self.allocate(index, [_Buffer(name, size, index)], {name: raw["at"]} if "at" in raw else {})

    def free(self, index: int, name: str) -> None:
        if name not in self.on_device:
            self.fail(f"tensor {name!r} is not on the device; drop the free.")
        buffer = self.on_device.pop(name)
        buffer.dies = index
        self.live -= buffer.bytes
        if self.contiguous:
            self.arena.drop(buffer)
        self.steps[index].waits += buffer.touched

    def touch(self, index: int, name: str) -> None:
        """Use a tensor on the device: wait until it is complete, and hold its memory until the step ends."""
        if name not in self.on_device:
            self.fail(f"it needs {name!r}, which is not on the device; prefetch it or run its op before.")
        buffer = self.on_device[name]
        if buffer.born != _AT_TIME_0:
            self.steps[index].waits.append(buffer.born)
        buffer.touched.append(index)

    def allocate(self, index: int, births: list[_Buffer], at: Any) -> None:
        """Allocate the buffers that this step creates; empty ones need no address."""
        need, room = sum(buffer.bytes for buffer in births), self.capacity - self.live
        if need > room and not self.contiguous:
            text = f"it needs {need} bytes, but of the budget of {self.budget} only {room} are left"
            self.fail(f"{text}; free something before it or raise the budget by {need - room}.")
        names = [buffer.name for buffer in births]
        if not isinstance(at, Mapping) or not set(at) <= set(names):
            self.fail(f"at is {at!r}; give addresses of {names!r} and of nothing else.")
        for buffer in births:
            low = at.get(buffer.name, None if buffer.bytes and self.contiguous else 0)
            top = self.capacity - buffer.bytes
            if self.contiguous and (not _is_int(low) or low > top):
                self.fail(f"the address at[{buffer.name!r}] is {low!r}; give a whole number from 0 to {top}.")
            buffer.low = low
            if self.contiguous and not self.arena.takes(buffer):
                other = next(one for one in self.on_device.values() if buffer.overlaps(one))
                text = f"{buffer.bytes} bytes at {low} overlap {other.bytes} bytes at {other.low}"
                self.fail(f"{buffer.name!r}: {text} ({other.name!r}); move it or free the other before.")
            buffer.touched.append(index)
            self.hold(buffer)
        self.steps[index].births = births


def _execute(replay: _Replay) -> tuple[list[float], list[float]]:
    """Play the steps against a clock. At every event the head of each stream, and every free, may start."""
    steps, count = replay.steps, len(replay.steps)
    start, end, clock = [math.inf] * count, [math.inf] * count, 0.0
    births, returned = [0] * (count + 1), _Sums(count)  # bytes
    deaths: list[list[_Buffer]] = [[] for _ in range(count)]
    for buffer in replay.buffers:
        births[buffer.born + 1] += buffer.bytes
        if buffer.dies is not None:
            deaths[buffer.dies].append(buffer)
    asked = list(accumulate(births))[1:]  # by all steps listed up to this one, started or not

    def has_memory(index: int) -> bool:
        """Bytes of earlier steps in the list count as held, unless earlier steps have actually released them."""
        if not replay.contiguous:
            asks = any(buffer.bytes for buffer in steps[index].births)  # a step without bytes never waits
            return not asks or asked[index] - returned.before(index) <= replay.capacity
        leaving = [old for k in range(settled, index) if end[k] > clock for old in deaths[k]]
        return not any(new.overlaps(old) for new in steps[index].births for old in leaving)

    queues: dict[str, deque[int]] = {}  # one per stream, first in, first out
    frees = list[int]()  # frees that are ready
    followers: list[list[int]] = [[] for _ in range(count)]  # steps that wait for the end of this one
    pending = [len(step.waits) for step in steps]
    for index, step in enumerate(steps):
        for other in step.waits:
            followers[other].append(index)
        if step.stream:
            queues.setdefault(step.stream, deque()).append(index)
        elif not step.waits:
            frees.append(index)
    waiting, running = count, list[int]()
    settled = 0  # all steps before this one have ended
    while waiting or running:
        for index in [index for index in running if end[index] <= clock]:
            running.remove(index)
            returned.add(index, sum(buffer.bytes for buffer in deaths[index]))
            for other in followers[index]:
                pending[other] -= 1
                if not pending[other] and not steps[other].stream:
                    frees.append(other)
        while settled < count and end[settled] <= clock and settled not in running:
            settled += 1
        busy = {steps[index].stream for index in running}
        heads = [queue[0] for stream, queue in queues.items() if queue and stream not in busy]
        begun = [
            index
            for index in (*frees, *heads)
            if (steps[index].issue == _AT_TIME_0 or start[steps[index].issue] < math.inf)
            and not pending[index]
            and has_memory(index)
        ]
        for index in begun:
            start[index], end[index] = clock, clock + steps[index].seconds
            if steps[index].stream:
                queues[steps[index].stream].popleft()
            else:
                frees.remove(index)
        waiting -= len(begun)
        running += begun
        if not begun and running:
            clock = min(end[index] for index in running)
        elif not begun and waiting:
            first = start.index(math.inf)
            raise ScheduleError(f"Step {first} waits for what never happens.", first)
    return start, end


def _check_intervals(replay: _Replay, start: Sequence[float], end: Sequence[float]) -> list[tuple[float, int]]:
    """Check the intervals only; return the bytes held after each event, without resident."""

    def hold(truth: bool, index: int, text: str) -> None:
        if not truth:
            raise ScheduleError(f"Step {index} starts at {start[index]}: {text}.", index)

    last: dict[str, int] = {}
    stays: dict[str, list[_Buffer]] = {}
    for buffer in replay.buffers:
        stays.setdefault(buffer.name, []).append(buffer)
    for k, step in enumerate(replay.steps):
        hold(0 <= start[k] <= end[k] == start[k] + step.seconds, k, f"it must end {step.seconds} later")
        hold(step.issue < 0 or start[step.issue] <= start[k], k, "a run listed before it starts later")
        hold(all(end[other] <= start[k] for other in step.waits), k, "what it waits for ends later")
        if step.stream:
            hold(step.stream not in last or end[last[step.stream]] <= start[k], k, "its stream is busy")
            last[step.stream] = k
        for name in step.reads:
            here = [b for b in stays[name] if b.born < k and (b.dies is None or b.dies > k)]
            born, dies = here[0].born, here[0].dies
            hold(born < 0 or end[born] <= start[k], k, f"tensor {name!r} is not complete")
            hold(dies is None or end[k] <= end[dies], k, f"tensor {name!r} goes before its end")
    events = [(0.0 if b.born < 0 else start[b.born], b.born, 0, n) for n, b in enumerate(replay.buffers)]
    events += [(end[b.dies], b.dies, 1, n) for n, b in enumerate(replay.buffers) if b.dies is not None]
    held, curve = 0, [(0.0, 0)]
    arena = _Arena()
    for moment, k, leaves, number in sorted(events):
        buffer = replay.buffers[number]
        if leaves:
            held -= buffer.bytes
            curve.append((moment, held))
            if replay.contiguous:
                arena.drop(buffer)
            continue
        hold(not replay.contiguous or arena.takes(buffer), k, f"the addresses of {buffer.name!r} are taken")
        held += buffer.bytes
        curve.append((moment, held))
        hold(held <= replay.capacity, k, f"{held} bytes are held, {replay.capacity} are there")
    return curve


def _check_head(graph: Json, plan: Json, device: Json) -> int:
    """Check everything but the steps; return how many times the graph runs."""
    for what, document in (("graph", graph), ("plan", plan), ("device", device)):
        form = f"memsched-{what}/1"
        if document.get("format", form) != form:
            raise ScheduleError(f"The {what} has format {document['format']!r}; give {form!r}.")
    for key in sorted({"rounds", "budget", "memory", "steps"} | set(plan)):
        if key not in plan or key not in _PLAN_KEYS:
            raise ScheduleError(f"The plan's key {key!r} is {'unknown' if key in plan else 'missing'}.")
    if plan["memory"] not in ("fluid", "contiguous") or not _is_int(plan["budget"]):
        given = f"memory {plan['memory']!r} and budget {plan['budget']!r}"
        raise ScheduleError(f"The plan has {given}; give fluid or contiguous, and a whole number of bytes.")
    batch, rounds = graph.get("batch", 1), plan["rounds"]
    pair = rounds[0] if isinstance(rounds, (list, tuple)) and len(rounds) == 1 else None
    numbers = list(pair) if isinstance(pair, (list, tuple)) and all(map(_is_int, pair)) else []
    if len(numbers) != 2 or numbers[0] != batch or numbers[1] < 1:
        raise ScheduleError(f"rounds is {rounds!r}; on this graph alone give [[{batch}, times]], times >= 1.")
    return int(numbers[1])


def check_plan(graph: Json, plan: Json, device: Json) -> ValidationReport:
    """Check one plan on one graph and one device, all in their JSON forms.

    Parameters
    ----------
    graph, plan, device : mapping
        Documents `memsched-graph/1`, `memsched-plan/1`, `memsched-device/1`: bytes, seconds, bytes per second.

    Returns
    -------
    ValidationReport
        Seconds and bytes.

    Raises
    ------
    ScheduleError
        The plan cannot run as written; `.step` is the index of the failing step, if there is one.
    """
    return _checked(graph, plan, device)[0]


def _checked(graph: Json, plan: Json, device: Json) -> tuple[ValidationReport, Held]:
    """The report of one plan on one graph, and the buffers it holds."""
    times = _check_head(graph, plan, device)
    replay = _Replay(graph, plan, device)
    start, end = _execute(replay)
    resident = replay.budget - replay.capacity
    repeats = sorted((again, name) for name, runs in replay.runs.items() for again in runs[1:])
    sizes = [(step.verb, replay.tensors.get(step.name, 0)) for step in replay.steps]
    memory = [(moment, held + resident) for moment, held in _check_intervals(replay, start, end)]
    last = len(replay.steps) - 1
    held = Held(
        memory=memory,
        stays=[(b.name, max(b.born, 0), 1 + (last if b.dies is None else b.dies), b.bytes) for b in replay.buffers],
    )
    report = ValidationReport(
        makespan=times * max(end, default=0.0),
        peak_memory=max(one for _, one in memory),
        logical_peak=replay.peak + resident,
        compute_time=times * sum(step.seconds for step in replay.steps if step.verb == "run"),
        recompute_time=times * sum(replay.steps[again].seconds for again, _ in repeats),
        bytes_out=times * sum(size for verb, size in sizes if verb == "offload"),
        bytes_in=times * sum(size for verb, size in sizes if verb == "prefetch"),
        recomputed=tuple(dict.fromkeys(name for _, name in repeats)),
        start=tuple(start),
        end=tuple(end),
    )
    return report, held


def validate(problem: Any, schedule: Any = None, device: Any = None) -> ValidationReport:
    """Check a schedule, or a whole result, without the simulator.

    Parameters
    ----------
    problem : Result, Chain, Graph or GraphFamily
        A result, whose figures and addresses are then checked too; or a problem, with the other two arguments.
    schedule, device : Schedule and Device
        Omitted when a result is given.

    Returns
    -------
    ValidationReport
        makespan (seconds, over all rounds), peak_memory (bytes, resident included), lower_bound and more. `proven` says
        whether a result's bound was confirmed. Other claims of the planner (estimate, runtime, params) cannot be
        checked.

    Raises
    ------
    ScheduleError
        The schedule cannot run (`.step` says where), or the result contradicts it.
    InvalidInputError
        An argument has the wrong type.

    Examples
    --------
    >>> import memsched as ms
    >>> result = ms.greedy(ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5]), 100, 1.0)
    >>> ms.validate(result).makespan
    8.0
    """
    result = None
    if schedule is None and device is None and hasattr(problem, "schedule"):
        result = problem
        problem, schedule, device = result.problem, result.schedule, result.device
    for name, value, mark in (("problem", problem, ""), ("schedule", schedule, "chunk"), ("device", device, "")):
        if not (hasattr(value, "to_json") or hasattr(value, "at")) or (mark and not hasattr(value, mark)):
            raise InvalidInputError(f"{name} is {value!r}; give a Result, or a problem, a Schedule and a Device")
    plan, machine = schedule.to_json(), device.to_json()
    graphs: dict[int, Json] = {}  # a family has one per batch
    if hasattr(problem, "at"):
        rounds = [(batch, times) for batch, times in plan["rounds"]]
        if sum(batch * times for batch, times in rounds) != problem.batch:
            raise ScheduleError(f"The rounds {rounds!r} do not add up to the batch, which is {problem.batch}.")
        graphs |= {batch: problem.at(batch).to_json() for batch, _ in rounds}
        both = {b: _checked(graph, {**plan, "rounds": [[b, 1]]}, machine) for b, graph in graphs.items()}
    else:
        from memsched._core import to_graph

        graph = problem if hasattr(problem, "ops") else to_graph(problem, chunk=schedule.chunk)
        rounds, graphs[1] = [(1, 1)], graph.to_json()
        both = {1: _checked(graphs[1], plan, machine)}
    alone = {batch: report for batch, (report, _) in both.items()}
    sums = ("makespan", "compute_time", "recompute_time", "bytes_out", "bytes_in")
    peaks = ("peak_memory", "logical_peak")
    totals: dict[str, Any] = {key: sum(times * getattr(alone[one], key) for one, times in rounds) for key in sums}
    totals |= {key: max(getattr(one, key) for one in alone.values()) for key in peaks}
    most = max(totals["bytes_out"], totals["bytes_in"])
    if most >= 2**63 or not math.isfinite(totals["makespan"]):
        text = f"take {totals['makespan']} seconds and move {most} bytes in one direction"
        raise ScheduleError(f"All rounds together {text}; give fewer rounds: times are finite and bytes below 2^63.")
    report = replace(alone[rounds[0][0]], **totals)
    if result is not None:
        check_result(result, report, both[rounds[0][0]][1].memory, both[max(both)][1].stays)
        report = replace(report, claimed_lower_bound=result.lower_bound, bound_on=result.bound_on)
    return replace(report, lower_bound=_derived(graphs, rounds, machine, report))


def _derived(
    graphs: Mapping[int, Json], rounds: Sequence[tuple[int, int]], device: Json, report: ValidationReport
) -> float:
    """The bound that the checker derives itself; never above the measured makespan."""
    goal = report.makespan if report.claimed_lower_bound is None else report.claimed_lower_bound
    often = {batch: sum(times for one, times in rounds if one == batch) for batch in graphs}
    enough = goal / often[rounds[0][0]] if len(graphs) == 1 else math.inf  # the search stops at a known goal
    if report.bound_on == "once":
        found = math.fsum(often[batch] * bound_of_once(graph, device) for batch, graph in graphs.items())
        return min(found, report.makespan)
    found = math.fsum(often[batch] * bound_of_all(graph, device, enough) for batch, graph in graphs.items())
    if found > report.makespan * (1 + ROUNDING):
        raise ScheduleError(f"The plan takes {report.makespan}, below its own lower bound {found}; please report this.")
    return min(found, report.makespan)
