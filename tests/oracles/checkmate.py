"""The plans of Checkmate's class, all of them: op t runs first at the end of turn t, ops below t may run before it."""

from __future__ import annotations

from itertools import chain, combinations
from math import inf

from memsched import Graph


def _subsets(held: frozenset[str]) -> list[frozenset[str]]:
    names = sorted(held)
    return [frozenset(some) for some in chain.from_iterable(combinations(names, k) for k in range(len(names) + 1))]


def least_time(graph: Graph, memory: int) -> float:
    """Seconds of the fastest plan in so many bytes, resident included; infinite: there is none.

    Position by position: of each set of tensors that may be on the device the least time so far. Weights stay.
    """
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    weights = sum(tensor["size"] for tensor in graph.tensors if tensor["role"] == "weight")
    fixed = {tensor["name"] for tensor in graph.tensors if tensor["role"] == "weight"}
    room = memory - graph.resident - weights
    inputs = frozenset(tensor["name"] for tensor in graph.tensors if tensor["role"] == "input")

    def room_for(held: frozenset[str], workspace: int) -> bool:
        return sum(size[name] for name in held) + workspace <= room

    if not room_for(inputs, 0):
        return inf
    known = dict.fromkeys(_subsets(inputs), 0.0)
    for turn in range(len(graph.ops)):
        for k in range(turn + 1):
            op = graph.ops[k]
            reached = {} if k == turn else dict(known)
            for held, spent in known.items():
                if not set(op["reads"]) - fixed <= held or (k < turn and op.get("once")):
                    continue
                for skip in (False, True) if op.get("tape") else (False,):
                    writes = frozenset(op["writes"]) - frozenset(op["tape"] if skip else ())
                    for choice in op["choices"]:
                        workspace = choice["workspace"]
                        if skip:
                            workspace = op.get("skip_workspace", workspace)
                        if room_for(held | writes, workspace):
                            for some in _subsets(held | writes):
                                reached[some] = min(reached.get(some, inf), spent + choice["time"])
            known = reached
    return min(known.values(), default=inf)


def least_memory(graph: Graph, most: int) -> int:
    """Bytes, resident included, in which there is a plan, and in one byte less there is none; at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if least_time(graph, middle) < inf:
            high = middle
        else:
            low = middle + 1
    return high
