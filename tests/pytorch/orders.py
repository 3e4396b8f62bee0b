"""Schedules that run every operation of a graph once, in any legal order, and give every tensor an address."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import memsched as ms

ALIGNMENT = 64


def random_order(graph: ms.Graph, seed: int) -> list[str]:
    """The names of the operations in a random topological order."""
    numbers = random.Random(seed)
    writer = {tensor: op["name"] for op in graph.ops for tensor in op["writes"]}
    readers: dict[str, list[str]] = {}
    waits: dict[str, int] = {}
    for op in graph.ops:
        before = {writer[tensor] for tensor in op["reads"] if tensor in writer}
        waits[op["name"]] = len(before)
        for name in before:
            readers.setdefault(name, []).append(op["name"])
    ready = [name for name, count in waits.items() if count == 0]
    order = []
    while ready:
        order.append(ready.pop(numbers.randrange(len(ready))))
        for name in readers.get(order[-1], ()):
            waits[name] -= 1
            if waits[name] == 0:
                ready.append(name)
    return order


def steps_of(graph: ms.Graph, order: Sequence[str]) -> list[dict[str, Any]]:
    """Runs in this order, and frees right behind the last reader, or the producer of what nobody reads."""
    ops = {op["name"]: op for op in graph.ops}
    last = {tensor: name for name in order for tensor in (*ops[name]["writes"], *ops[name]["reads"])}
    freed: dict[str, list[str]] = {}
    for tensor, name in last.items():
        freed.setdefault(name, []).append(tensor)
    return [step for name in order for step in ({"run": name}, *({"free": tensor} for tensor in freed.get(name, ())))]


def ordered(graph: ms.Graph, order: Sequence[str]) -> ms.Schedule:
    """A schedule without addresses, whose budget is what it needs."""
    return _schedule(graph, steps_of(graph, order), _peak(graph, order), "fluid")


def placed(graph: ms.Graph, order: Sequence[str], *, alignment: int = ALIGNMENT) -> ms.Schedule:
    """A schedule with addresses: each range begins at the lowest multiple of `alignment` where it fits."""
    size = {tensor["name"]: int(tensor["size"]) for tensor in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    held: dict[str, tuple[int, int]] = {}
    height = 0
    for tensor in graph.tensors:
        if tensor["role"] in ("input", "weight") and tensor["size"]:  # packed
            held[tensor["name"]] = (height, height + size[tensor["name"]])
            height += size[tensor["name"]]
    steps = steps_of(graph, order)
    for step in steps:
        if "free" in step:
            held.pop(step["free"], None)
            continue
        op = ops[step["run"]]
        wanted = {name: size[name] for name in op["writes"]} | {"": op["choices"][0]["workspace"]}
        at = {}
        for name, length in sorted(wanted.items(), key=lambda item: -item[1]):
            if length:
                at[name] = _first_fit(held, length, alignment)
                held[name] = (at[name], at[name] + length)
                height = max(height, at[name] + length)
        held.pop("", None)
        step["at"] = at
    return _schedule(graph, steps, graph.resident + height, "contiguous")


def _first_fit(held: dict[str, tuple[int, int]], length: int, alignment: int) -> int:
    at = 0
    for low, high in sorted(held.values()):
        if at + length <= low:
            break
        at = max(at, -(-high // alignment) * alignment)
    return at


def _peak(graph: ms.Graph, order: Sequence[str]) -> int:
    size = {tensor["name"]: int(tensor["size"]) for tensor in graph.tensors}
    ops = {op["name"]: op for op in graph.ops}
    live = peak = sum(size[tensor["name"]] for tensor in graph.tensors if tensor["role"] in ("input", "weight"))
    for step in steps_of(graph, order):
        if "run" in step:
            live += sum(size[name] for name in ops[step["run"]]["writes"])
            peak = max(peak, live + int(ops[step["run"]]["choices"][0]["workspace"]))
        else:
            live -= size[step["free"]]
    return int(graph.resident) + peak


def _schedule(graph: ms.Graph, steps: list[dict[str, Any]], budget: int, memory: str) -> ms.Schedule:
    return ms.Schedule.from_json(
        {
            "format": "memsched-plan/1",
            "graph": graph.name,
            "chunk": None,
            "rounds": [[graph.batch, 1]],
            "budget": budget,
            "memory": memory,
            "planner": {"name": "test"},
            "steps": steps,
        }
    )


def orders(graph: ms.Graph, many: int) -> Iterator[tuple[int, list[str]]]:
    """Some random orders, and the seed of each."""
    for seed in range(many):
        yield seed, random_order(graph, seed)
