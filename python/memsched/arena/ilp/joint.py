"""OLLA's order and addresses in one integer program (Steiner et al., 2022): equation 9."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from memsched._core import Graph
from memsched.arena.buffers import Buffer, height
from memsched.arena.ilp.model import Model, Scale, TimeUpError, left, load, until_after
from memsched.arena.ilp.net import INPUT, Item, Net, Reach, is_topological, least_runs, lifetimes, net_of
from memsched.arena.ilp.order import exact_order
from memsched.arena.ilp.place import address_of, apart, place_ilp, settle, unit_of
from memsched.arena.ilp.spans import Plan, Sum
from memsched.arena.ilp.start import probe

MOST_OPS = 100  # about 20,000 variables; eight seconds to write, and HiGHS rarely solves it beyond 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSolution:
    """An order, and an address for everything with bytes. Addresses and heights exclude the resident bytes."""

    order: list[int]  # ids of the ops
    offsets: dict[int, int]  # tensor -> address, of tensors that have bytes and are alive at some time
    workspaces: dict[int, int]  # op -> address
    height: int  # bytes from address 0 to the highest end
    lower_bound: int  # on the height with any order and addresses
    peak_bound: int  # on the most that is alive at once, with any order

    @property
    def optimal(self) -> bool:
        return self.height == self.lower_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """Everything with bytes: `items`, with the workspaces of the ops `owners` last, and the fixed addresses."""

    net: Net
    items: list[Item]
    owners: list[int]
    fixed: list[int | None]
    alignment: int  # of what has no fixed address
    resident: int

    def buffers(self, order: Sequence[int]) -> list[Buffer]:
        """The lifetimes in a given order of the ops."""
        place = {op: k for k, op in enumerate(order)}
        buffers = []
        for item, offset in zip(self.items, self.fixed, strict=True):
            start = place.get(item.source, 0)
            end = len(order) if item.kept else 1 + max((place[op] for op in item.readers), default=start)
            alignment = self.alignment if offset is None else 1
            buffers.append(Buffer(start, max(end, start + 1), item.size, alignment=alignment, offset=offset))
        return buffers


def joint_ilp(
    graph: Graph, *, keep: frozenset[int] = frozenset(), alignment: int = 1, time_limit: float | None = None
) -> JointSolution:
    """Find the order and the addresses that together need the least memory; for small graphs.

    Each op takes its least run. Inputs and weights are packed from address 0 in the graph's order; an input that nobody
    reads keeps its place there but is not counted. First the best order is found, then its best addresses (section 4.4
    of the paper). If they need more than that order's peak, one integer program solves for both. It has no constraints
    between tensors that are never alive together.

    `keep` are ids of tensors that live until the end; all other addresses are multiples of `alignment`. Order and
    addresses have a third of the time each. When it is over, the best solution so far is returned.
    """
    load()
    until, third = until_after(time_limit), 0.0 if time_limit is None else time_limit / 3
    task, packed = _task(graph, keep, alignment, until)
    first = exact_order(task.net, until - 2 * third)
    buffers = task.buffers(first.order)
    offsets, _, _ = place_ilp(buffers, time_limit=left(until - third))
    top = height(buffers, offsets)
    ends = [
        item.size + (offset or 0) for item, offset in zip(task.items, task.fixed, strict=True) if offset is not None
    ]
    peak_bound = max([0, first.lower_bound - task.resident, *ends])
    order, bound = first.order, peak_bound
    if top > bound:
        with suppress(TimeUpError):
            order, offsets, bound = _together(task, (order, offsets, top), bound, until)
        top = height(task.buffers(order), offsets)
    count = len(task.items) - len(task.owners)
    tensors = graph.tensors
    sources = max((low + int(tensors[k]["size"]) for k, low in packed.items()), default=0)
    placed = {item.tensors[0]: offset for item, offset in zip(task.items[:count], offsets, strict=False)}
    return JointSolution(
        order=order,
        offsets={**packed, **placed},
        workspaces=dict(zip(task.owners, offsets[count:], strict=True)),
        height=max(top, sources),
        lower_bound=max(bound, sources),
        peak_bound=max(peak_bound, sources),
    )


def _task(graph: Graph, keep: frozenset[int], alignment: int, until: float) -> tuple[_Task, dict[int, int]]:
    """The task, and the addresses of inputs and weights."""
    packed: dict[int, int] = {}
    base = 0
    tensors, ops = graph.tensors, graph.ops
    runs = least_runs(tensors, ops, keep)
    for k, tensor in enumerate(tensors):
        if tensor["role"] in ("input", "weight") and tensor["size"]:
            packed[k] = base
            base += int(tensor["size"])
    items = lifetimes(tensors, ops, keep, runs)
    sizes = [workspace for _, workspace in runs]
    owners = [k for k, size in enumerate(sizes) if size]
    scratch = [Item(tensors=(), source=k, readers=frozenset(), kept=False, size=sizes[k]) for k in owners]
    fixed = [packed.get(item.tensors[0]) for item in items]
    task = _Task(
        net=net_of(graph, keep, until),
        items=items + scratch,
        owners=owners,
        fixed=fixed + [None] * len(scratch),
        alignment=alignment,
        resident=int(graph.resident),
    )
    return task, packed


def _together(
    task: _Task, known: tuple[list[int], list[int], int], bound: int, until: float
) -> tuple[list[int], list[int], int]:
    """(order, offsets, lower bound), if the best known height is above the bound."""
    order, offsets, top = known
    blank = task.buffers(order)
    unit, plain = unit_of(blank)
    limit = top - unit
    reach = probe(task.net, limit + task.resident, until)
    if reach is None:
        return order, offsets, top
    scale = Scale.of([unit], top)
    model = Model(until)
    always = task.net.always - task.resident
    peak = model.variable(scale.down(bound - always), scale.down(limit - always), cost=1.0, integer=scale.whole)
    plan = Plan(model, task.net, reach, alone=True)
    plan.limit(scale, peak)
    addresses = [address_of(model, scale, one, limit, plain) for one in blank]
    for item, address in zip(task.items, addresses, strict=True):
        model.row(scale.down(item.size - always), float("inf"), [(peak, 1.0), (address, -1.0)])
    _separate(task, plan, scale, addresses, limit)
    outcome = model.solve(time_limit=left(until), gap=scale.gap)
    reached = scale.down(top) if outcome.infeasible else outcome.bound + scale.down(always)
    if outcome.values is not None:
        ordered = plan.order(outcome.values)
        if is_topological(ordered, task.net.reach):
            buffers = task.buffers(ordered)
            found = settle(buffers, [outcome.values[address] for address in addresses])
            if found is not None and height(buffers, found) < top:
                order, offsets, top = ordered, found, height(buffers, found)
    return order, offsets, max(bound, min(scale.bound(reached), top))


def _separate(task: _Task, plan: Plan, scale: Scale, addresses: list[int], limit: int) -> None:
    """Equations 6 and 7 for each pair that can be alive at the same time."""
    model = plan.model
    live = []  # C_{e,t} + P_{e,t} at every timestep
    for item in task.items:
        created = [Sum() if item.source == INPUT else plan.runs(item.source, t) for t in range(plan.spans.steps)]
        live.append([one.add(other) for one, other in zip(created, plan.preserved(item), strict=True)])
    for i, one in enumerate(task.items):
        for j, other in enumerate(task.items[:i]):
            model.check_time()
            fixed = task.fixed[i] is not None and task.fixed[j] is not None
            if fixed or _precedes(plan.reach, one, other) or _precedes(plan.reach, other, one):
                continue
            meets = [Sum(-1.0).add(a).add(b) for a, b in zip(live[i], live[j], strict=True) if _can(a) and _can(b)]
            if not meets:
                continue
            below = Sum(0.0, [(model.variable(0, 1, integer=True), 1.0)])
            if _always(one, other) or any(not both.terms and both.constant > 0 for both in meets):
                above = Sum(1.0).add(below, -1.0)
            else:
                above = Sum(0.0, [(model.variable(0, 1, integer=True), 1.0)])
                either = Sum().add(below).add(above)
                model.row(-float("inf"), 1.0, either.terms)
                for both in meets:
                    plan.at_least(either, both)
            ends = (addresses[i], one.size, addresses[j]), (addresses[j], other.size, addresses[i])
            for end, way in zip(ends, (below, above), strict=True):
                apart(model, scale, end, (way.terms, way.constant), limit)


def _can(alive: Sum) -> bool:
    return bool(alive.terms) or alive.constant > 0


def _always(one: Item, other: Item) -> bool:
    """Whether some op needs both at once."""
    together = one.source == other.source
    return together or one.source in other.readers or other.source in one.readers


def _precedes(reach: Reach, one: Item, other: Item) -> bool:
    """Whether every op that uses `one` comes before every op that uses `other` (section 4.2)."""
    if one.kept or other.source == INPUT:
        return False
    last = one.readers or {one.source}
    return all(reach.before[other.source] >> op & 1 for op in last)
