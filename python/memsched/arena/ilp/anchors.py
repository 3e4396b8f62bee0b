"""OLLA's control edges (functions 3 and 4): weight updates run before an op that runs early."""

from __future__ import annotations

from memsched._core import Graph
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


def control_edges_of(graph: Graph) -> frozenset[tuple[int, int]]:
    """(update, anchor) for each weight update that has an anchor: the update runs first.

    The level of an anchor, the length of the longest path to it, is above that of the update, so no set of edges makes
    a cycle. Among the candidates the anchor is one with the longest path after it.
    """
    count = len(graph.ops)
    edges = edges_of(graph.ops)
    spans = Spans.levels(Reach.of(count, edges))
    forward, backward = spans.first, [spans.steps - 1 - last for last in spans.last]
    successors: list[list[int]] = [[] for _ in range(count)]
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for first, second in sorted(edges):
        successors[first].append(second)
        predecessors[second].append(first)

    def candidate(op: int, above: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Function 4: (backward level, op) of the best anchor reachable from an op."""
        if op not in known:
            best = NOWHERE
            for sink in successors[op]:
                if backward[sink] > best[0]:
                    found = (backward[sink], sink) if forward[sink] > above else candidate(sink, above, known)
                    best = max(best, found, key=lambda one: one[0])
            known[op] = best
        return known[op]

    found = set()
    for update in updates_of(graph):
        starts, known = {update}, dict[int, tuple[int, int]]()
        anchor = NOWHERE
        while anchor == NOWHERE and starts:
            starts = {source for op in starts for source in predecessors[op]}
            for source in sorted(starts):
                anchor = max(anchor, candidate(source, forward[update], known), key=lambda one: one[0])
        if anchor != NOWHERE:
            found.add((update, anchor[1]))
    return frozenset(found)
