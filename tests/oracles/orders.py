"""Orders of a graph's ops: the peak of one, all of them, and the best, as plainly as it can be said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from memsched import Graph


def peak_of(graph: Graph, order: Sequence[int], keep: Collection[str] = ()) -> int:
    """Bytes at the worst moment: before each op what is alive, then what the op writes and its least workspace."""
    ops = graph.ops
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    role = {tensor["name"]: tensor["role"] for tensor in graph.tensors}
    readers = {name: {k for k, op in enumerate(ops) if name in op["reads"]} for name in size}
    alive = {
        name for name in size if role[name] == "weight" or (role[name] == "input" and (readers[name] or name in keep))
    }
    peak = graph.resident + sum(size[name] for name in alive)
    done: set[int] = set()
    for k in order:
        op = ops[k]
        assert k not in done
        assert alive.issuperset(op["reads"])
        alive |= set(op["writes"])
        workspace = min(choice["workspace"] for choice in op["choices"])
        peak = max(peak, graph.resident + sum(size[name] for name in alive) + workspace)
        done.add(k)
        alive -= {name for name in alive if role[name] != "weight" and name not in keep and readers[name] <= done}
    assert len(done) == len(ops)
    return peak


def _needs(graph: Graph) -> list[set[int]]:
    """Of each op those that write what it reads."""
    writer = {name: k for k, op in enumerate(graph.ops) for name in op["writes"]}
    return [{writer[name] for name in op["reads"] if name in writer} for op in graph.ops]


def all_orders(graph: Graph) -> Iterator[list[int]]:
    """Every topological order."""
    needs = _needs(graph)

    def grow(order: list[int]) -> Iterator[list[int]]:
        if len(order) == len(needs):
            yield list(order)
        for k in range(len(needs)):
            if k not in order and needs[k] <= set(order):
                yield from grow([*order, k])

    return grow([])


def best_order(graph: Graph, keep: Collection[str] = ()) -> tuple[int, list[int]]:
    """The least peak and an order that has it, by a dynamic program over the sets of ops that can have run."""
    tensors, ops = graph.tensors, graph.ops
    size = {tensor["name"]: tensor["size"] for tensor in tensors}
    workspace = [min(choice["workspace"] for choice in op["choices"]) for op in ops]
    needs = _needs(graph)

    def bytes_after(done: int) -> int:
        """Alive when a set of ops has run and the next one has not begun."""
        here = {tensor["name"] for tensor in tensors if tensor["role"] in ("input", "weight")}
        for k, op in enumerate(ops):
            if done >> k & 1:
                here |= set(op["writes"])
        wanted = {tensor["name"] for tensor in tensors if tensor["role"] == "weight"} | set(keep)
        for k, op in enumerate(ops):
            if not done >> k & 1:
                wanted |= set(op["reads"])
        return graph.resident + sum(size[name] for name in here & wanted)

    best: dict[int, tuple[int, list[int]]] = {0: (bytes_after(0), [])}  # by what has run: its best peak and order
    for _ in ops:
        grown: dict[int, tuple[int, list[int]]] = {}
        for done, (peak, order) in best.items():
            before = bytes_after(done)
            for k, op in enumerate(ops):
                if done >> k & 1 or any(not done >> other & 1 for other in needs[k]):
                    continue
                now = before + sum(size[name] for name in op["writes"]) + workspace[k]
                candidate = (max(peak, now), [*order, k])
                if done | 1 << k not in grown or candidate < grown[done | 1 << k]:
                    grown[done | 1 << k] = candidate
        best = grown
    return best[(1 << len(ops)) - 1]
