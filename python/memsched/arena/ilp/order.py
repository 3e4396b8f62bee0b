"""OLLA's order of the ops (Steiner et al., 2022): equations 1 to 5, 13 and 14, solved by HiGHS; its control edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from memsched._core import Graph
from memsched.arena.ilp.model import Model, Scale, TimeUpError, check_time, left, load, until_after
from memsched.arena.ilp.net import Net, Reach, edges_of, is_topological, net_of
from memsched.arena.ilp.spans import Plan, Spans
from memsched.arena.ilp.start import beam_order, probe, probed_bound

NOWHERE = (-1, -1)  # no anchor, and a level below all others


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSolution:
    """An order of a graph's ops. Bytes include resident and weights."""

    order: list[int]  # ids of the ops
    peak_memory: int
    lower_bound: int  # on the peak of any order

    @property
    def optimal(self) -> bool:
        return self.peak_memory == self.lower_bound


def order_ilp(
    graph: Graph,
    *,
    keep: frozenset[int] = frozenset(),
    time_limit: float | None = None,
    compressed: bool = False,
    control_edges: bool = False,
) -> OrderSolution:
    """Find the order of the ops with the least peak.

    By default each timestep of the integer program runs one op, which makes it exact. A beam search gives a first
    order. Then the integer program looks for a better one; if the cost decides which of two ops comes first, that
    precedence is added. If there is no better order, the first one is optimal.

    Sizes are divided by their greatest common divisor. If the peak is more than a thousand times that, the tolerances
    of HiGHS leave a gap of one part in 10^8 between the bound and an optimum.

    `keep` are ids of tensors that live until the end. When the time is over, the best order so far is returned.

    The paper's own shortcuts, after which only the graph itself gives a bound: `compressed` is its horizon, as many
    timesteps as the longest path has ops, with several ops per timestep, all of whose tensors count together.
    `control_edges` are its functions 3 and 4: each weight update runs before an op suggested by the neighbourhood of
    its gradient, which can exclude all optimal orders.
    """
    load()
    until = until_after(time_limit)
    net = net_of(graph, keep, until)
    if compressed or control_edges:
        found = _published(graph, net, compressed, control_edges, until)
    else:
        found = exact_order(net, until)
    given = [int(tensor["size"]) for tensor in graph.tensors if tensor["role"] in ("input", "weight")]
    start = int(graph.resident) + sum(given)  # also inputs that no op reads
    peak, bound = max(found.peak_memory, start), max(found.lower_bound, start)
    return OrderSolution(order=found.order, peak_memory=peak, lower_bound=bound)


def exact_order(net: Net, until: float) -> OrderSolution:
    """The order with the least peak while ops run; `until` is a time of time.monotonic()."""
    best = list(range(net.count))
    peak, bound = net.peak(best), net.own_bound()
    try:
        best = beam_order(net, until)
        peak = net.peak(best)
        bound = max(bound, net.bound(net.reach))
        scale = _scale(net, peak)
        bound = probed_bound(net, bound, peak, scale.unit, until)
        better = peak - scale.unit
        reach = None if bound == peak else probe(net, better, until)
        if reach is None:
            return OrderSolution(order=best, peak_memory=peak, lower_bound=peak)
        model = Model(until)
        low, high = scale.down(bound - net.always), scale.down(better - net.always)
        top = model.variable(low, high, cost=1.0, integer=scale.whole)
        plan = Plan(model, net, reach, alone=True)
        plan.limit(scale, top)
        outcome = model.solve(time_limit=left(until), gap=scale.gap)
    except TimeUpError:
        return OrderSolution(order=best, peak_memory=peak, lower_bound=bound)
    reached = high + scale.down(scale.unit) if outcome.infeasible else outcome.bound
    if outcome.values is not None:
        found = plan.order(outcome.values)
        if is_topological(found, net.reach) and net.peak(found) < peak:
            best, peak = found, net.peak(found)
    bound = max(bound, min(scale.bound(reached) + net.always, peak))
    return OrderSolution(order=best, peak_memory=peak, lower_bound=bound)


def _published(graph: Graph, net: Net, compressed: bool, control_edges: bool, until: float) -> OrderSolution:
    """The order that OLLA's shortcuts find, or the listed order if they find none in time."""
    order, bound = list(range(net.count)), net.own_bound()
    try:
        more = control_edges_of(graph, until) if control_edges else frozenset()
        reach = Reach.of(net.count, net.edges | more, until) if more else net.reach
        bound = net.bound(net.reach)
        scale = _scale(net, sum(item.size for item in net.items) + sum(net.scratch) + net.always)
        model = Model(until)
        top = model.variable(scale.down(bound - net.always), float("inf"), cost=1.0)
        plan = Plan(model, net, reach, alone=not compressed)
        plan.limit(scale, top)
        outcome = model.solve(time_limit=left(until), gap=scale.gap)
    except TimeUpError:
        return OrderSolution(order=order, peak_memory=net.peak(order), lower_bound=bound)
    if outcome.values is not None:
        found = plan.order(outcome.values)
        if is_topological(found, net.reach):
            order = found
    return OrderSolution(order=order, peak_memory=net.peak(order), lower_bound=bound)


def _scale(net: Net, most: int) -> Scale:
    return Scale.of([item.size for item in net.items] + net.scratch, most - net.always)


def updates_of(graph: Graph) -> list[int]:
    """The weight updates: ops of kind "optimizer", and ops of the backward phase whose outputs nobody reads.

    The latter are updates without a kind, or the addition of a weight's gradient to the place where it is kept.
    """
    read = {name for op in graph.ops for name in op["reads"]}
    return [
        k
        for k, op in enumerate(graph.ops)
        if op.get("kind") == "optimizer" or (op["phase"] == "bwd" and not read & set(op["writes"]))
    ]


def control_edges_of(graph: Graph, until: float = math.inf) -> frozenset[tuple[int, int]]:
    """(update, anchor) for each weight update that has an anchor: the update runs first (function 3).

    The level of an anchor, the length of the longest path to it, is above that of the update, so no set of edges makes
    a cycle. Among the candidates the anchor is one with the longest path after it. After `until`: TimeUpError.
    """
    count = len(graph.ops)
    edges = edges_of(graph.ops)
    spans = Spans.levels(Reach.of(count, edges, until), until)
    forward, backward = spans.first, [spans.steps - 1 - last for last in spans.last]
    successors: list[list[int]] = [[] for _ in range(count)]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for first, second in sorted(edges):
        successors[first].append(second)
        predecessors[second].append(first)

    @cache
    def candidates(above: int) -> list[tuple[int, int]]:
        """Function 4: per op, (backward level, op) of the best anchor reachable from it, on a level above that one."""
        best = [NOWHERE] * count
        for op in sorted(range(count), key=lambda op: -forward[op]):
            check_time(until)
            for sink in successors[op]:
                if backward[sink] > best[op][0]:
                    found = (backward[sink], sink) if forward[sink] > above else best[sink]
                    best[op] = max(best[op], found, key=lambda one: one[0])
        return best

    found = set()
    for update in updates_of(graph):
        starts, known, anchor = {update}, candidates(forward[update]), NOWHERE
        while anchor == NOWHERE and starts:
            check_time(until)
            starts = {source for op in starts for source in predecessors[op]}
            anchor = max([NOWHERE, *(known[source] for source in sorted(starts))], key=lambda one: one[0])
        if anchor != NOWHERE:
            found.add((update, anchor[1]))
    return frozenset(found)
