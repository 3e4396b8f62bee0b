"""Exhaustive search for the least makespan of a graph whose ops run once, in the listed order (Problem 1).

Transfers move whole tensors and are never interrupted; a device copy lasts until it is dropped; a prefetch
holds all of its memory from its start.  A* over the states (ops done, copies on the device, copies on the
host, transfers under way), with the compute time still to come as the estimate; a decision is needed only
when something ends, for every schedule can be shifted left until each start coincides with such an instant.
Times are made integers exactly, so states compare without rounding.

Limits: the number of states grows like 4^tensors; graphs of up to 3 stages (7 tensors that may travel) take
seconds. Zero-byte tensors never travel.  Host memory is not limited.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf, lcm
from typing import Any, NamedTuple


class State(NamedTuple):
    """`op` is the next op, or the one that runs while `op_left` > 0; the masks hold complete copies."""

    op: int
    op_left: int
    device: int
    host: int
    out: int
    out_left: int
    into: int
    into_left: int


@dataclass(frozen=True)
class Found:
    """The least makespan and the steps of a memsched-plan/1 that reach it."""

    makespan: float
    steps: list[dict[str, Any]]


@dataclass(frozen=True)
class _Instance:
    ops: list[dict[str, Any]]
    names: list[str]
    size: list[int]
    reads: list[int]
    writes: list[int]
    later: list[int]  # tensors read by op j or by an op after it
    workspace: list[int]
    duration: list[int]
    out: list[int | None]
    into: list[int | None]
    scale: int
    memory: float
    duplex: bool
    inputs: int


def least_makespan(
    graph: dict[str, Any], budget: float, device: dict[str, Any], *, max_states: int = 3_000_000
) -> Found | None:
    """Least makespan within `budget` bytes, resident included; None if infeasible; raises when too large."""
    instance = _instance(graph, budget, device)
    start = State(0, 0, instance.inputs, 0, -1, 0, -1, 0)
    remaining = [sum(instance.duration[j:]) for j in range(len(instance.ops) + 1)]
    came: dict[State, tuple[State | None, dict[str, Any] | None]] = {start: (None, None)}
    cost = {start: 0}
    heap: list[tuple[int, int, State]] = [(remaining[0], 0, start)]
    closed: set[State] = set()
    while heap:
        _, _, state = heapq.heappop(heap)
        if state in closed:
            continue
        closed.add(state)
        if len(closed) > max_states:
            raise RuntimeError(f"more than {max_states} states")
        if state.op == len(instance.ops) and state.out < 0 and state.into < 0:  # a plan ends when all its steps have
            return Found(float(Fraction(cost[state], instance.scale)), _steps(came, state))
        for following, spent, step in _moves(instance, state):
            total = cost[state] + spent
            if following not in cost or total < cost[following]:
                cost[following] = total
                came[following] = (state, step)
                ahead = following.op_left + remaining[following.op + (following.op_left > 0)]
                heapq.heappush(heap, (total + ahead, len(came), following))
    return None


def _instance(graph: dict[str, Any], budget: float, device: dict[str, Any]) -> _Instance:
    names = [t["name"] for t in graph["tensors"]]
    bit = {name: 1 << i for i, name in enumerate(names)}
    size = [t["size"] for t in graph["tensors"]]
    ops = graph["ops"]
    reads = [sum(bit[t] for t in op["reads"]) for op in ops]
    later = [0] * (len(ops) + 1)
    for j in range(len(ops) - 1, -1, -1):
        later[j] = later[j + 1] | reads[j]
    shared = device.get("bandwidth")
    latency = Fraction(device.get("latency", 0))

    def duration(total: int, rate: float) -> Fraction | None:
        if total == 0 or rate == 0:
            return None
        return latency + (0 if rate == inf else Fraction(total) / Fraction(rate))

    run = [Fraction(op["choices"][0]["time"]) for op in ops]
    out = [duration(s, float(device.get("d2h", shared))) for s in size]
    into = [duration(s, float(device.get("h2d", shared))) for s in size]
    scale = lcm(*(f.denominator for f in [*run, *out, *into] if f is not None))
    return _Instance(
        ops=ops,
        names=names,
        size=size,
        reads=reads,
        writes=[sum(bit[t] for t in op["writes"]) for op in ops],
        later=later,
        workspace=[op["choices"][0]["workspace"] for op in ops],
        duration=[int(f * scale) for f in run],
        out=[None if f is None else int(f * scale) for f in out],
        into=[None if f is None else int(f * scale) for f in into],
        scale=scale,
        memory=budget - graph.get("resident", 0),
        duplex=bool(device.get("duplex", False)),
        inputs=sum(bit[t["name"]] for t in graph["tensors"] if t["role"] == "input"),
    )


def _bytes(instance: _Instance, mask: int) -> int:
    return sum(s for i, s in enumerate(instance.size) if mask >> i & 1)


def _used(instance: _Instance, state: State) -> int:
    used = _bytes(instance, state.device) + (instance.size[state.into] if state.into >= 0 else 0)
    if state.op_left > 0:
        used += _bytes(instance, instance.writes[state.op]) + instance.workspace[state.op]
    return used


def _moves(instance: _Instance, state: State) -> Iterator[tuple[State, int, dict[str, Any] | None]]:
    """Every decision at this instant (no time passes), and waiting for whatever ends next."""
    running = state.op_left > 0
    room = instance.memory - _used(instance, state)
    reading = instance.reads[state.op] if running else 0
    needed = instance.later[state.op + running]
    for i, name in enumerate(instance.names):  # what nobody reads any more goes at once: nothing is lost
        if (state.device & ~reading & ~needed) >> i & 1 and i != state.out:
            yield state._replace(device=state.device & ~(1 << i)), 0, {"free": name}
            return
    for i, name in enumerate(instance.names):
        here, there = state.device >> i & 1, state.host >> i & 1
        wanted = needed >> i & 1
        if here and there and not reading >> i & 1:
            yield state._replace(device=state.device & ~(1 << i)), 0, {"free": name}
        out, into = instance.out[i], instance.into[i]
        free_out = state.out < 0 and (instance.duplex or state.into < 0)
        free_in = state.into < 0 and (instance.duplex or state.out < 0)
        if here and not there and wanted and free_out and out is not None:
            started = state._replace(out=i, out_left=out)
            yield (started if out else _ended(instance, started)), 0, {"offload": name}
        if there and not here and wanted and free_in and into is not None and instance.size[i] <= room:
            started = state._replace(into=i, into_left=into)
            yield (started if into else _ended(instance, started)), 0, {"prefetch": name}
    if not running and state.op < len(instance.ops):
        j = state.op
        need = _bytes(instance, instance.writes[j]) + instance.workspace[j]
        if instance.reads[j] & ~state.device == 0 and need <= room:
            step = {"run": instance.ops[j]["name"]}
            if instance.duration[j] > 0:
                yield state._replace(op_left=instance.duration[j]), 0, step
            else:
                yield state._replace(op=j + 1, device=state.device | instance.writes[j]), 0, step
    left = [v for v in (state.op_left, state.out_left, state.into_left) if v > 0]
    if left:
        yield _wait(instance, state, min(left)), min(left), None


def _wait(instance: _Instance, state: State, time: int) -> State:
    """The state when the next thing has ended."""
    later = state
    if state.op_left > 0:
        later = later._replace(op_left=state.op_left - time)
        if later.op_left == 0:
            later = later._replace(op=state.op + 1, device=state.device | instance.writes[state.op])
    return _ended(
        instance,
        later._replace(out_left=max(0, state.out_left - time), into_left=max(0, state.into_left - time)),
    )


def _ended(instance: _Instance, state: State) -> State:
    """Take in the transfers that have nothing left."""
    if state.out >= 0 and state.out_left == 0:
        state = state._replace(out=-1, host=state.host | 1 << state.out)
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
