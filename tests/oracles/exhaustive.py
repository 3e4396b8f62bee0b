"""Exhaustive search for the least makespan of a graph: over all plans, or over those without recomputation in order.

A plan may run ops in any order that data allow, again and again, by any algorithm, with or without their tapes, and
offload, prefetch and free any tensor at any time. Transfers move whole tensors and are never interrupted; a prefetch
holds all of its memory from its start. A* over the states (ops that have run, copies on the device, copies on the host,
what is under way); the estimate is the fastest times of the ops still to come, or the transfers that must still come.
What has lost a tensor for good is left. A decision is needed only when something ends, for every schedule can be
shifted left until each start coincides with such an instant. Times are made integers exactly, so states compare without
rounding.

Limits: the number of states grows like 4^tensors and more; graphs of up to 3 stages (7 tensors that may travel) take
seconds in order, graphs of 4 ops over all plans. Tensors without bytes never travel, for nothing is won by it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf, lcm
from typing import Any, NamedTuple


class State(NamedTuple):
    """`run` is a row of the instance's runs, or -1; masks hold ops that have ended and complete copies."""

    ran: int
    run: int
    run_left: int
    device: int
    host: int
    out: int
    out_left: int
    gone: bool  # the copy that travels out is freed when it has arrived; another may be made already
    into: int
    into_left: int


class Run(NamedTuple):
    """One way to run an op."""

    op: int
    duration: int
    reads: int
    writes: int
    bytes: int  # writes and workspace
    step: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The least makespan and the steps of a memsched-plan/1 that reach it."""

    makespan: float
    steps: list[dict[str, Any]]


@dataclass(frozen=True)
class _Instance:
    runs: list[Run]
    fastest: list[int]  # by op
    once: int
    in_order: bool
    names: list[str]
    size: list[int]
    reads: list[int]
    out: list[int | None]
    into: list[int | None]
    scale: int
    memory: float
    host_memory: float
    duplex: bool
    inputs: int
    held: list[int]  # by mask of tensors

    @property
    def all_ops(self) -> int:
        return (1 << len(self.fastest)) - 1


def least_makespan(
    graph: dict[str, Any],
    budget: float,
    device: dict[str, Any],
    *,
    any_plan: bool = False,
    below: float = inf,
    max_states: int = 3_000_000,
) -> Found | None:
    """Least makespan within `budget` bytes, resident included; None if no plan is below `below` seconds.

    Without `any_plan` each op runs once, in the listed order. Raises RuntimeError when the search grows too large.
    """
    instance = _instance(graph, budget, device, in_order=not any_plan)
    start = State(0, -1, 0, instance.inputs, 0, -1, 0, False, -1, 0)
    if instance.held[instance.inputs] > instance.memory:
        return None
    limit = inf if below == inf else Fraction(below) * instance.scale
    came: dict[State, tuple[State | None, dict[str, Any] | None]] = {start: (None, None)}
    cost = {start: 0}
    heap: list[tuple[int, int, State]] = [(sum(instance.fastest), 0, start)]
    closed: set[State] = set()
    while heap:
        estimate, _, state = heapq.heappop(heap)
        if state in closed:
            continue
        if estimate >= limit:
            return None
        closed.add(state)
        if len(closed) > max_states:
            raise RuntimeError(f"more than {max_states} states")
        idle = state.run < 0 and state.out < 0 and state.into < 0
        if state.ran == instance.all_ops and idle:  # a plan ends when all its steps have
            return Found(float(Fraction(cost[state], instance.scale)), _steps(came, state))
        for following, spent, step in _moves(instance, state):
            total = cost[state] + spent
            if following not in cost or total < cost[following]:
                cost[following] = total
                came[following] = (state, step)
                heapq.heappush(heap, (total + _ahead(instance, following), -len(came), following))
    return None


def _instance(graph: dict[str, Any], budget: float, device: dict[str, Any], *, in_order: bool) -> _Instance:
    names = [t["name"] for t in graph["tensors"]]
    bit = {name: 1 << i for i, name in enumerate(names)}
    size = [t["size"] for t in graph["tensors"]]
    ops = graph["ops"]
    shared = device.get("bandwidth")
    latency = Fraction(device.get("latency") or 0)

    def duration(total: int, rate: float) -> Fraction | None:
        if total == 0 or rate == 0:
            return None
        return latency + (0 if rate == inf else Fraction(total) / Fraction(rate))

    out = [duration(s, float(device.get("d2h", shared))) for s in size]
    into = [duration(s, float(device.get("h2d", shared))) for s in size]
    times = [Fraction(choice["time"]) for op in ops for choice in op["choices"]]
    scale = lcm(*(f.denominator for f in [*times, *out, *into] if f is not None))
    runs = []
    for k, op in enumerate(ops):
        for choice in op["choices"]:
            for skip in [(), tuple(op["tape"])] if op.get("tape") else [()]:
                kept = [t for t in op["writes"] if t not in skip]
                workspace = op.get("skip_workspace", choice["workspace"]) if skip else choice["workspace"]
                step = {"run": op["name"]}
                step |= {"alg": choice["alg"]} if len(op["choices"]) > 1 else {}
                step |= {"skip": list(skip)} if skip else {}
                total = sum(size[names.index(t)] for t in kept) + workspace
                masks = (sum(bit[t] for t in tensors) for tensors in (op["reads"], kept))
                runs.append(Run(k, int(Fraction(choice["time"]) * scale), *masks, total, step))
    held = [0]
    for one in size:
        held += [total + one for total in held]
    limit = device.get("host_memory")
    return _Instance(
        runs=runs,
        fastest=[min(run.duration for run in runs if run.op == k) for k in range(len(ops))],
        once=sum(1 << k for k, op in enumerate(ops) if in_order or op.get("once")),
        in_order=in_order,
        names=names,
        size=size,
        reads=[sum(bit[t] for t in op["reads"]) for op in ops],
        out=[None if f is None else int(f * scale) for f in out],
        into=[None if f is None else int(f * scale) for f in into],
        scale=scale,
        memory=budget - graph.get("resident", 0),
        host_memory=inf if limit is None else limit,
        duplex=bool(device.get("duplex", False)),
        inputs=sum(bit[t["name"]] for t in graph["tensors"] if t["role"] in ("input", "weight")),
        held=held,
    )


def _ahead(instance: _Instance, state: State) -> int:
    """Time that compute or the link certainly still takes."""
    done = _begun(instance, state)
    compute = state.run_left + sum(time for k, time in enumerate(instance.fastest) if not done >> k & 1)
    back = _only_from_host(instance, state)
    into = state.into_left + sum(time or 0 for i, time in enumerate(instance.into) if back >> i & 1)
    return max(compute, into, state.out_left if instance.duplex else state.out_left + into)


def _begun(instance: _Instance, state: State) -> int:
    return state.ran | (1 << instance.runs[state.run].op if state.run >= 0 else 0)


def _only_from_host(instance: _Instance, state: State) -> int:
    """Tensors that an op that has not run reads, and that can be on the device by a later prefetch only."""
    needed = makeable = 0
    done = _begun(instance, state)
    for k, reads in enumerate(instance.reads):
        needed |= 0 if done >> k & 1 else reads
    for run in instance.runs:
        makeable |= 0 if instance.once & done & 1 << run.op else run.writes
    writing = instance.runs[state.run].writes if state.run >= 0 else 0
    arriving = 1 << state.into if state.into >= 0 else 0
    return needed & ~(makeable | state.device | writing | arriving)


def _startable(instance: _Instance, state: State) -> Iterator[int]:
    """The runs that the rules on ops allow next, whatever is on the device."""
    if state.run >= 0:
        return
    turn = state.ran.bit_length()
    for k, run in enumerate(instance.runs):
        if run.op == turn if instance.in_order else not (instance.once & state.ran) >> run.op & 1:
            yield k


def _wanted(instance: _Instance, state: State) -> int:
    """Tensors that some op may still read."""
    finished = instance.once & state.ran
    if state.run >= 0:
        finished |= instance.once & 1 << instance.runs[state.run].op
    wanted = 0
    for k, reads in enumerate(instance.reads):
        wanted |= 0 if finished >> k & 1 else reads
    return wanted


def _moves(instance: _Instance, state: State) -> Iterator[tuple[State, int, dict[str, Any] | None]]:
    """Every decision at this instant (no time passes), and waiting for whatever ends next."""
    running = instance.runs[state.run] if state.run >= 0 else None
    reading, writing = (running.reads, running.writes) if running else (0, 0)
    arriving = 1 << state.into if state.into >= 0 else 0
    used = instance.held[state.device | arriving] + (running.bytes if running else 0)
    room = instance.memory - used - (instance.size[state.out] if state.gone else 0)
    wanted = _wanted(instance, state)
    sent = state.host | (1 << state.out if state.out >= 0 else 0)
    if _only_from_host(instance, state) & ~sent:
        return  # lost for good
    for i, name in enumerate(instance.names):  # what nobody reads any more goes at once: nothing is lost
        if (state.device & ~reading & ~wanted) >> i & 1 and i != state.out:
            yield state._replace(device=state.device & ~(1 << i)), 0, {"free": name}
            return
    for i, name in enumerate(instance.names):
        mask = 1 << i
        here, there = state.device & mask, state.host & mask
        if here and not reading & mask:
            if i != state.out:
                yield state._replace(device=state.device & ~mask), 0, {"free": name}
            elif not state.gone:
                yield state._replace(device=state.device & ~mask, gone=True), 0, {"free": name}
        out, into = instance.out[i], instance.into[i]
        free_out = state.out < 0 and (instance.duplex or state.into < 0)
        free_in = state.into < 0 and (instance.duplex or state.out < 0)
        fits = instance.held[sent | mask] <= instance.host_memory
        if here and not there and wanted & mask and free_out and out is not None and fits:
            yield _ended(state._replace(out=i, out_left=out)), 0, {"offload": name}
        fetchable = there and not here and not writing & mask and instance.size[i] <= room
        if fetchable and wanted & mask and free_in and into is not None:
            yield _ended(state._replace(into=i, into_left=into)), 0, {"prefetch": name}
    for k in _startable(instance, state):
        run = instance.runs[k]
        if not run.reads & ~state.device and not run.writes & (state.device | arriving) and run.bytes <= room:
            started = state._replace(run=k, run_left=run.duration)
            yield (started if run.duration else _finished(instance, started)), 0, run.step
    left = [v for v in (state.run_left, state.out_left, state.into_left) if v > 0]
    if left:
        yield _wait(instance, state, min(left)), min(left), None


def _wait(instance: _Instance, state: State, time: int) -> State:
    """The state when the next thing has ended."""
    later = state
    if state.run >= 0:
        later = later._replace(run_left=state.run_left - time)
        if later.run_left == 0:
            later = _finished(instance, later)
    return _ended(later._replace(out_left=max(0, state.out_left - time), into_left=max(0, state.into_left - time)))


def _finished(instance: _Instance, state: State) -> State:
    run = instance.runs[state.run]
    return state._replace(ran=state.ran | 1 << run.op, run=-1, device=state.device | run.writes)


def _ended(state: State) -> State:
    """Take in the transfers that have nothing left."""
    if state.out >= 0 and state.out_left == 0:
        state = state._replace(out=-1, gone=False, host=state.host | 1 << state.out)
    if state.into >= 0 and state.into_left == 0:
        state = state._replace(into=-1, device=state.device | 1 << state.into)
    return state


def _steps(came: dict[State, tuple[State | None, dict[str, Any] | None]], state: State | None) -> list[dict[str, Any]]:
    steps = []
    while state is not None:
        state, step = came[state]
        if step is not None:
            steps.append(step)
    return steps[::-1]
