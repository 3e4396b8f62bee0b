"""AUTOSWAP's four scores and its selection, transcribed from their definitions, in exact arithmetic.

Zhang et al. (arXiv:1903.06631) on a chain's graph as memsched-graph/1, in whole tensors. Block k is a^k and
tape^k. Its absence lasts from the end of F_{k+1} to the start of B_{k+1} of the run that moves nothing; a
tensor relieves every op strictly between its last forward use and its first backward use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from math import inf
from typing import Any

Graph = dict[str, Any]


def blocks(graph: Graph) -> dict[int, list[str]]:
    """Tensors with bytes of each x_k, k < n; blocks without bytes are left out."""
    n = sum(op["phase"] == "fwd" for op in graph["ops"])
    size = sizes(graph)
    found = {k: [t for t in (f"a{k}", f"tape{k}") if size.get(t, 0) > 0] for k in range(n)}
    return {k: tensors for k, tensors in found.items() if tensors}


def sizes(graph: Graph) -> dict[str, int]:
    return {t["name"]: t["size"] for t in graph["tensors"]}


def load(graph: Graph, away: Collection[str] = ()) -> list[int]:
    """Bytes in use during each op, workspace and resident included, when some tensors leave and come back."""
    ops, size = graph["ops"], sizes(graph)
    inputs = {t["name"] for t in graph["tensors"] if t["role"] == "input"}
    used = []
    for q in range(len(ops)):
        total = graph["resident"] + ops[q]["choices"][0]["workspace"]
        for t in size:
            uses = [i for i, op in enumerate(ops) if t in op["reads"] or t in op["writes"]]
            forward = [i for i in uses if ops[i]["phase"] == "fwd"]
            born = 0 if t in inputs else uses[0]
            dies = uses[-1] if any(t in op["reads"] for op in ops) else len(ops)
            if t in away:
                first_backward = min(i for i in uses if ops[i]["phase"] == "bwd")
                absent = forward[-1] < q < first_backward
            else:
                absent = False
            if born <= q <= dies and not absent:
                total += size[t]
        used.append(total)
    return used


def absence(graph: Graph, k: int) -> list[int]:
    """The ops that run while x_k is absent."""
    names = [op["name"] for op in graph["ops"]]
    return list(range(names.index(f"F{k + 1}") + 1, names.index(f"B{k + 1}")))


def seconds(graph: Graph, op: int) -> Fraction:
    return Fraction(graph["ops"][op]["choices"][0]["time"])


def weighted_absence(graph: Graph, k: int, used: Sequence[int], limit: int) -> Fraction:
    return sum((seconds(graph, q) * (used[q] - limit) for q in absence(graph, k)), Fraction(0))


def duration_of_absence(graph: Graph, k: int, device: Any) -> Fraction:
    duration = sum((seconds(graph, q) for q in absence(graph, k)), Fraction(0))
    for t in blocks(graph)[k]:
        for rate in (device.d2h, device.h2d):
            duration -= Fraction(device.latency)
            duration -= 0 if rate == inf else Fraction(sizes(graph)[t]) / Fraction(rate)
    return duration


def area_of_absence(graph: Graph, k: int, device: Any) -> Fraction:
    bytes_of_block = sum(sizes(graph)[t] for t in blocks(graph)[k])
    duration = duration_of_absence(graph, k, device)
    return duration * bytes_of_block if duration >= 0 else duration / bytes_of_block


def scaled(score: dict[int, Fraction]) -> dict[int, Fraction]:
    low, high = min(score.values()), max(score.values())
    return {k: (v - low) / (high - low) if high > low else Fraction(0) for k, v in score.items()}


def select(graph: Graph, device: Any, limit: int, weights: Sequence[float]) -> tuple[set[int], float]:
    """The blocks chosen, and the least lead of a choice over the second best (exact ties do not count)."""
    block, plain = blocks(graph), load(graph)
    margin = inf
    chosen: set[int] = set()
    if not block:
        return chosen, margin
    fixed = [
        scaled({k: duration_of_absence(graph, k, device) for k in block}),
        scaled({k: area_of_absence(graph, k, device) for k in block}),
        scaled({k: weighted_absence(graph, k, plain, limit) for k in block}),
    ]
    while len(chosen) < len(block):
        used = load(graph, [t for k in chosen for t in block[k]])
        if max(used) <= limit:
            break
        left = [k for k in block if k not in chosen]
        submodular = scaled({k: weighted_absence(graph, k, used, limit) for k in left})
        score = {k: sum(Fraction(w) * s[k] for w, s in zip(weights, [*fixed, submodular], strict=True)) for k in left}
        best = max(left, key=lambda k: (score[k], -k))
        chosen.add(best)
        margin = min([margin, *(float(score[best] - score[k]) for k in left if score[k] < score[best])])
    return chosen, margin
