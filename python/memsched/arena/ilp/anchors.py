"""OLLA's control edges (functions 3 and 4): weight updates run before an op that runs early."""

from __future__ import annotations

import math
from functools import cache

from memsched._core import Graph
from memsched.arena.ilp.model import check_time
from memsched.arena.ilp.net import Reach, edges_of
from memsched.arena.ilp.spans import Spans

NOWHERE = (-1, -1)  # no anchor, and a level below all others


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
