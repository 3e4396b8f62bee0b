"""Orders of a training graph: their peaks and lifetimes, and the rules by which PyTorch's Inductor picks one.

The rules are those of torch._inductor.memory in torch 2.13, reimplemented on `memsched.Graph`: Inductor tries three
greedy orders beside the given one, and takes the one with the least peak.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import memsched as ms

__all__ = ["RULES", "Flow", "Lifetime", "inductor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Bytes that are there from the position `start` in an order until before `end`."""

    start: int
    end: int
    bytes: int


class Flow:
    """A graph by numbers, for peaks and orders. An order is a sequence of ops' numbers in the graph's list."""

    def __init__(self, graph: ms.Graph) -> None:
        self.graph = graph
        ops, tensors = graph.ops, graph.tensors
        self.names = [op["name"] for op in ops]
        self.bytes = [int(tensor["size"]) for tensor in tensors]
        number = {tensor["name"]: index for index, tensor in enumerate(tensors)}
        self.reads = [[number[name] for name in op["reads"]] for op in ops]
        self.writes = [[number[name] for name in op["writes"]] for op in ops]
        self.workspace = [int(op["choices"][0]["workspace"]) for op in ops]
        self.writer = [-1] * len(tensors)  # -1: there from the start
        self.readers: list[list[int]] = [[] for _ in tensors]
        for op in range(len(ops)):
            for tensor in self.writes[op]:
                self.writer[tensor] = op
            for tensor in self.reads[op]:
                self.readers[tensor].append(op)

    @cached_property
    def before(self) -> list[list[int]]:
        """By op, the ops that it must follow directly."""
        return [sorted({self.writer[tensor] for tensor in reads} - {-1}) for reads in self.reads]

    @cached_property
    def after(self) -> list[list[int]]:
        """By op, the ops that must follow it directly."""
        return [sorted({op for tensor in writes for op in self.readers[tensor]}) for writes in self.writes]

    def made(self, op: int) -> int:
        """Bytes of what an op writes, and of its workspace."""
        return self.workspace[op] + sum(self.bytes[tensor] for tensor in self.writes[op])

    def listed(self) -> list[int]:
        """PyTorch's own order."""
        return list(range(len(self.names)))

    def numbers(self, names: Sequence[str]) -> list[int]:
        """The order in which these ops are named."""
        number = {name: index for index, name in enumerate(self.names)}
        return [number[name] for name in names]

    def lifetimes(self, order: Sequence[int]) -> list[Lifetime]:
        """Of all tensors with bytes and all workspaces; resident bytes are no part of it.

        Raises
        ------
        ValueError
            The order is not a topological one.
        """
        position = {op: index for index, op in enumerate(order)}
        if sorted(order) != self.listed() or any(position[a] > position[b] for b in position for a in self.before[b]):
            raise ValueError(f"the order of {len(order)} ops is no topological order of {self.graph.name}")
        found = []
        for tensor, count in enumerate(self.bytes):
            start = position.get(self.writer[tensor], 0)
            end = max((position[op] for op in self.readers[tensor]), default=start) + 1
            if count:
                found.append(Lifetime(start=start, end=end, bytes=count))
        found += [
            Lifetime(start=position[op], end=position[op] + 1, bytes=w) for op, w in enumerate(self.workspace) if w
        ]
        return found

    def peak(self, order: Sequence[int]) -> int:
        """Bytes with the resident ones: an op's outputs and workspace count together with its inputs."""
        change = [0] * (len(order) + 1)
        for one in self.lifetimes(order):
            change[one.start] += one.bytes
            change[one.end] -= one.bytes
        live = most = 0
        for step in change:
            live += step
            most = max(most, live)
        return int(self.graph.resident) + most


def least_peak_first(flow: Flow) -> list[int]:
    """Among the ops that can run: if some fit below the highest memory so far, the one that leaves the least.

    If none fits, the one that makes the least. Ties go to the one that is listed first.
    """
    left = [len(readers) for readers in flow.readers]
    waits = [len(before) for before in flow.before]
    ready = {op for op, count in enumerate(waits) if count == 0}
    frees = [flow.workspace[op] + sum(flow.bytes[t] for t in flow.writes[op] if not left[t]) for op in flow.listed()]
    for op, reads in enumerate(flow.reads):
        frees[op] += sum(flow.bytes[tensor] for tensor in reads if left[tensor] == 1)
    made = [flow.made(op) for op in flow.listed()]
    live = most = sum(count for tensor, count in enumerate(flow.bytes) if flow.writer[tensor] < 0)
    order = []
    while ready:
        room = most - live
        chosen = min(ready, key=lambda op: (made[op] if made[op] > room else 0, made[op] - frees[op], op))
        ready.remove(chosen)
        order.append(chosen)
        most = max(most, live + made[chosen])
        live += made[chosen] - frees[chosen]
        for op in flow.after[chosen]:
            waits[op] -= 1
            if waits[op] == 0:
                ready.add(op)
        for tensor in flow.reads[chosen]:
            left[tensor] -= 1
            if left[tensor] == 1:
                for op in flow.readers[tensor]:
                    frees[op] += flow.bytes[tensor]
    return order


def earliest_inputs_first(flow: Flow) -> list[int]:
    """Among the ops that can run, the one whose predecessors ran earliest, compared one after the other."""
    waits = [len(before) for before in flow.before]
    queue: list[tuple[list[int], int]] = [([], op) for op, count in enumerate(waits) if count == 0]
    heapq.heapify(queue)
    position: dict[int, int] = {}
    while queue:
        _, chosen = heapq.heappop(queue)
        position[chosen] = len(position)
        for op in flow.after[chosen]:
            waits[op] -= 1
            if waits[op] == 0:
                heapq.heappush(queue, (sorted(position[other] for other in flow.before[op]), op))
    return list(position)


def small_ops_first(flow: Flow) -> list[int]:
    """From the op that touches the fewest bytes to the one that touches the most, each after all that it needs."""
    touched = [flow.made(op) + sum(flow.bytes[tensor] for tensor in flow.reads[op]) for op in flow.listed()]

    def rank(op: int) -> tuple[int, int]:
        return touched[op], op

    done: dict[int, None] = {}
    for op in sorted(flow.listed(), key=rank):
        stack = [op]
        while stack:
            missing = [other for other in flow.before[stack[-1]] if other not in done]
            if missing and stack[-1] not in done:
                stack.append(min(missing, key=rank))
            else:
                done.setdefault(stack.pop())
    return list(done)


RULES: dict[str, Callable[[Flow], list[int]]] = {
    "LPMF": least_peak_first,
    "BFS": earliest_inputs_first,
    "DFS": small_ops_first,
}


def inductor(flow: Flow) -> list[int]:
    """The best of PyTorch's own order and the three rules."""
    return min([flow.listed(), *(rule(flow) for rule in RULES.values())], key=flow.peak)
