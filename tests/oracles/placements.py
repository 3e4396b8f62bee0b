"""The least height of blocks with lifetimes, and of a graph over all orders, by trying everything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import NamedTuple

from memsched import Graph
from oracles.orders import all_orders, all_runs, least_runs


class Lived(NamedTuple):
    """Bytes in use in [start, end); `offset` is where they must lie, if anywhere."""

    start: int
    end: int
    size: int
    alignment: int = 1
    offset: int | None = None


def overlaps(one: Lived, at: int, other: Lived, other_at: int) -> bool:
    in_time = max(one.start, other.start) < min(one.end, other.end)
    return in_time and max(at, other_at) < min(at + one.size, other_at + other.size)


def least_height(blocks: Sequence[Lived]) -> int:
    """Every block lies at 0 or right on another one, the next aligned address: in every order of placing them."""
    live = [one for one in blocks if one.size and one.start < one.end]
    idle = max(((one.offset or 0) + one.size for one in blocks if one not in live), default=0)
    fixed = [(one, one.offset) for one in live if one.offset is not None]

    best = sum(one.size + one.alignment for one in live) + max((at + one.size for one, at in fixed), default=0)
    load = max((sum(o.size for o in live if o.start <= one.start < o.end) for one in live), default=0)

    def place(left: list[Lived], placed: list[tuple[Lived, int]]) -> None:
        nonlocal best
        if best == load:
            return  # nothing is lower than what is alive at once
        if not left:
            best = min(best, max((at + one.size for one, at in placed), default=0))
        for k, one in enumerate(left):
            ends = {0, *(at + other.size for other, at in placed)}
            for at in {-(-end // one.alignment) * one.alignment for end in ends}:
                if at + one.size < best and not any(overlaps(one, at, other, low) for other, low in placed):
                    place([*left[:k], *left[k + 1 :]], [*placed, (one, at)])

    place([one for one in live if one.offset is None], fixed)
    return max(best, idle)


Runs = Sequence[tuple[set[str], int]]


def lived(graph: Graph, order: Sequence[int], keep: Collection[str] = (), runs: Runs | None = None) -> list[Lived]:
    """What an order's tensors and workspaces need; inputs and weights are packed from address 0.

    `runs`: of each op what it writes and its workspace; those of the least runs by default.
    """
    place = {k: t for t, k in enumerate(order)}
    runs = least_runs(graph, keep) if runs is None else runs
    blocks = []
    base = 0
    for tensor in graph.tensors:
        name = tensor["name"]
        source = tensor["role"] in ("input", "weight")
        writer = [k for k, (writes, _) in enumerate(runs) if name in writes]
        readers = [place[k] for k, op in enumerate(graph.ops) if name in op["reads"]]
        start = place[writer[0]] if writer else 0
        end = 1 + max([start, *readers])
        if tensor["role"] == "weight" or name in keep:
            end = len(order)
        elif not writer and not readers:
            end = start
        blocks.append(Lived(start, end, tensor["size"] if source or writer else 0, 1, base if source else None))
        base += tensor["size"] if source else 0
    for k, (_, workspace) in enumerate(runs):
        blocks.append(Lived(place[k], place[k] + 1, workspace))
    return blocks


def least_joint_height(graph: Graph, keep: Collection[str] = (), *, any_run: bool = False) -> int:
    """Over all orders, by the least run of each op or by any; those with the same lifetimes count once."""
    chosen = list(product(*all_runs(graph, keep))) if any_run else [least_runs(graph, keep)]
    found = {tuple(lived(graph, order, keep, runs)) for order in all_orders(graph) for runs in chosen}
    return min(least_height(blocks) for blocks in found)
