"""Lower bounds on a training step without recomputation, as linear programs over the graph of a chain.

The ops run in one fixed order.  `aggregate_lp` ignores which byte is which, `item_lp` follows every tensor.
Both place variables at the start and the end of every op, so both are relaxations: any legal schedule of the
step gives a feasible point with the same makespan.

Why a schedule without recomputation is never below them.  Of a schedule, keep for every tensor only what
matters: if it is off the device during some op, its first offload and its last prefetch before its first
backward reader; else nothing.  (The two backward readers of a boundary tensor are neighbours, as are its
writer and its forward reader, so nothing that leaves and returns between them is away during an op.)  Let
O(t) and P(t) be the bytes of these transfers finished by t.  Then: O grows only over bytes already produced;
over any interval the link carries no more than its bandwidth; a byte is away during op j only if O has it, P
has not begun it and its last forward reader ended before j, so at most min(O, releasable_j) - P bytes are
away; and in the backward phase only bytes that no op up to j reads may be away, so O - P <= removable_j.
Latency and the wholeness of transfers are dropped, which only lowers the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import lil_matrix


@dataclass(frozen=True)
class Item:
    """A tensor that may travel; op indices, -1 as writer of the network's input."""

    size: int
    writer: int
    last_forward: int
    first_backward: int


@dataclass(frozen=True)
class Step:
    """One training step: per op its duration and its bytes while nothing travels; M less resident."""

    duration: tuple[float, ...]
    held: tuple[int, ...]
    items: tuple[Item, ...]
    memory: float
    d2h: float
    h2d: float
    duplex: bool


def from_graph(graph: dict[str, Any], capacity: float, device: dict[str, Any]) -> Step:
    """The step of a chain's memsched-graph/1; `capacity` in bytes counts the resident bytes too."""
    ops, size = graph["ops"], {t["name"]: t["size"] for t in graph["tensors"]}
    users: dict[str, list[int]] = {t: [] for t in size}
    writer = dict.fromkeys(size, -1)
    for j, op in enumerate(ops):
        for t in op["reads"]:
            users[t].append(j)
        for t in op["writes"]:
            writer[t] = j
    held = []
    for j, op in enumerate(ops):
        beside = sum(size[t] for t in size if writer[t] < j <= max(users[t], default=-1))
        held.append(beside + _least_run(op, size, users))
    items = []
    for t in graph["tensors"]:
        backward = [j for j in users[t["name"]] if ops[j]["phase"] == "bwd"]
        forward = [j for j in users[t["name"]] if ops[j]["phase"] == "fwd"]
        if t["role"] in ("input", "activation") and backward and t["size"] > 0:
            made = writer[t["name"]]
            items.append(Item(t["size"], made, max([made, *forward]), min(backward)))
    shared = device.get("bandwidth")
    return Step(
        duration=tuple(op["choices"][0]["time"] for op in ops),
        held=tuple(held),
        items=tuple(items),
        memory=capacity - graph.get("resident", 0),
        d2h=float(device.get("d2h", shared)),
        h2d=float(device.get("h2d", shared)),
        duplex=bool(device.get("duplex", False)),
    )


def _least_run(op: dict[str, Any], size: dict[str, int], users: dict[str, list[int]]) -> int:
    """Bytes of the writes and the workspace of the smallest run that leaves what other ops read."""
    tape, workspace = op.get("tape", []), min(choice["workspace"] for choice in op["choices"])
    whole = sum(size[t] for t in op["writes"]) + workspace
    if not tape or any(users[t] for t in tape):
        return whole
    return min(whole, sum(size[t] for t in op["writes"] if t not in tape) + op.get("skip_workspace", workspace))


class _Program:
    """Rows `sum(coefficient * variable) <= bound`, variables >= 0, minimising the end of the last op."""

    def __init__(self, step: Step, flows: int) -> None:
        self.ops = len(step.duration)
        self.bytes_unit = float(max([*step.held, 1]))
        self.time_unit = max(sum(step.duration), 1e-30)
        if sum(step.duration) == 0:
            rates = [r for r in (step.d2h, step.h2d) if 0 < r < float("inf")]
            self.time_unit = self.bytes_unit / min(rates) if rates else 1.0
        self.columns = self.ops + 2 * flows * 2 * self.ops
        self.flows = flows
        self.rows: list[dict[int, float]] = []
        self.bounds: list[float] = []
        self.fixed = np.full(self.columns, np.inf)

    def start(self, op: int) -> int:
        return op

    def flow(self, direction: int, flow: int, point: int) -> int:
        """Bytes of a flow sent by a point (2 j: start of op j, 2 j + 1: its end); direction 0: out, 1: in."""
        return self.ops + (direction * self.flows + flow) * 2 * self.ops + point

    def row(self, terms: list[tuple[int, float]], bound: float) -> None:
        merged: dict[int, float] = {}
        for column, value in terms:
            merged[column] = merged.get(column, 0.0) + value
        self.rows.append(merged)
        self.bounds.append(bound)

    def solve(self, step: Step) -> float | None:
        matrix = lil_matrix((len(self.rows), self.columns))
        for index, merged in enumerate(self.rows):
            for column, value in merged.items():
                matrix[index, column] = value
        cost = np.zeros(self.columns)
        cost[self.start(self.ops - 1)] = 1.0
        box = [(0.0, None if np.isinf(high) else float(high)) for high in self.fixed]
        found = linprog(cost, A_ub=matrix.tocsr(), b_ub=np.array(self.bounds), bounds=box, method="highs")
        if found.status == 2:
            return None
        assert found.status == 0, found.message
        return float(found.fun * self.time_unit + step.duration[-1])


def _order_and_link(program: _Program, step: Step) -> None:
    """Ops follow each other, flows only grow, and no interval carries more than the link does."""
    for j in range(1, program.ops):
        gap = step.duration[j - 1] / program.time_unit
        program.row([(program.start(j - 1), 1.0), (program.start(j), -1.0)], -gap)
    seconds_a_byte = [np.inf if r == 0 else program.bytes_unit / r / program.time_unit for r in (step.d2h, step.h2d)]
    for direction in (0, 1):
        for flow in range(program.flows):
            for point in range(1, 2 * program.ops):
                earlier, later = (program.flow(direction, flow, point - s) for s in (1, 0))
                program.row([(earlier, 1.0), (later, -1.0)], 0.0)
        if np.isinf(seconds_a_byte[direction]):
            for flow in range(program.flows):
                program.fixed[[program.flow(direction, flow, p) for p in range(2 * program.ops)]] = 0.0
            seconds_a_byte[direction] = 0.0
    links = [(0,), (1,)] if step.duplex else [(0, 1)]
    for link in links:
        for point in range(2 * program.ops):
            terms: list[tuple[int, float]] = []
            for direction in link:
                for flow in range(program.flows):
                    terms.append((program.flow(direction, flow, point), seconds_a_byte[direction]))
                    if point > 0:
                        terms.append((program.flow(direction, flow, point - 1), -seconds_a_byte[direction]))
            program.row(terms + _minus_length(program, point), _busy(program, step, point))


def _minus_length(program: _Program, point: int) -> list[tuple[int, float]]:
    """Minus the length of the interval that ends at `point`, its variable part."""
    op = point // 2
    if point % 2 == 1:
        return []
    return [(program.start(op), -1.0)] + ([(program.start(op - 1), 1.0)] if op > 0 else [])


def _busy(program: _Program, step: Step, point: int) -> float:
    """The constant part of the length of the interval that ends at `point`."""
    op = point // 2
    if point % 2 == 1:
        return step.duration[op] / program.time_unit
    return -step.duration[op - 1] / program.time_unit if op > 0 else 0.0


def aggregate_lp(step: Step) -> float | None:
    """The bound that ignores which byte is which; None when no schedule fits."""
    program = _Program(step, flows=1)
    _order_and_link(program, step)
    unit, backward = program.bytes_unit, min([i.first_backward for i in step.items], default=len(step.held))
    for j in range(program.ops):
        made = sum(i.size for i in step.items if i.writer < j) / unit
        releasable = sum(i.size for i in step.items if i.last_forward < j) / unit
        removable = sum(i.size for i in step.items if i.first_backward > j) / unit
        over = (step.held[j] - step.memory) / unit
        for point in (2 * j, 2 * j + 1):
            sent, back = program.flow(0, 0, point), program.flow(1, 0, point)
            program.fixed[sent] = min(program.fixed[sent], made)
            program.row([(back, 1.0), (sent, -1.0)], 0.0)
            program.row([(sent, -1.0), (back, 1.0)], -over)
            if j < backward:
                program.row([(back, 1.0)], releasable - over)
                program.row([(back, 1.0)], releasable)
            else:
                program.row([(sent, 1.0), (back, -1.0)], removable)
    return program.solve(step)


def item_lp(step: Step, offloaded: frozenset[int] | None = None, turn: int | None = None) -> float | None:
    """The bound that follows each item; with `offloaded` those items travel whole and the others not at all.

    With `turn` the last offload ends and the first prefetch starts in the interval that ends at this point.
    """
    program = _Program(step, flows=len(step.items))
    _order_and_link(program, step)
    unit, last = program.bytes_unit, 2 * program.ops - 1
    for f, item in enumerate(step.items):
        whole = offloaded is not None and f in offloaded
        total = program.flow(0, f, last)
        for point in range(2 * program.ops):
            sent, back = program.flow(0, f, point), program.flow(1, f, point)
            may_leave = item.writer < point // 2 and (whole or offloaded is None)
            program.fixed[sent] = min(program.fixed[sent], item.size / unit if may_leave else 0.0)
            program.row([(back, 1.0), (sent, -1.0)], 0.0)
            if point // 2 >= item.first_backward:
                program.row([(total, 1.0), (back, -1.0)], 0.0)
            if turn is not None and point < turn:
                program.fixed[back] = 0.0
            if turn is not None and point >= turn:
                program.row([(total, 1.0), (sent, -1.0)], 0.0)
        if whole:
            program.row([(total, -1.0)], -item.size / unit)
    for point in range(2 * program.ops):
        terms = []
        for f, item in enumerate(step.items):
            if item.last_forward < point // 2 < item.first_backward:
                terms += [(program.flow(0, f, point), -1.0), (program.flow(1, f, point), 1.0)]
        program.row(terms, (step.memory - step.held[point // 2]) / unit)
    return program.solve(step)


def in_class_lp(step: Step, offloaded: frozenset[int]) -> float | None:
    """Least makespan when `offloaded` travel whole and no prefetch starts before the last offload ends."""
    values = [item_lp(step, offloaded, turn) for turn in range(2 * len(step.held))]
    return min((value for value in values if value is not None), default=None)
