"""Orders of a graph's ops: the peak of one, all of them, and the best, as plainly as it can be said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from memsched import Graph


def all_runs(graph: Graph, keep: Collection[str] = ()) -> list[list[tuple[set[str], int]]]:
    """Of each op what it may write and with which workspace: a tape that nobody wants may be left."""
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    wanted = {name for op in graph.ops for name in op["reads"]} | set(keep)
    found = []
    for op in graph.ops:
        least = min(choice["workspace"] for choice in op["choices"])
        ways = [(set(op["writes"]), least)]
        if op.get("tape") and not wanted & set(op["tape"]):
            ways.append((set(op["writes"]) - set(op["tape"]), op.get("skip_workspace", least)))
        found.append(sorted(ways, key=lambda way: sum(size[name] for name in way[0]) + way[1]))
    return found


def least_runs(graph: Graph, keep: Collection[str] = ()) -> list[tuple[set[str], int]]:
    """Of each op the run that makes the least."""
    return [ways[0] for ways in all_runs(graph, keep)]


def peak_of(graph: Graph, order: Sequence[int], keep: Collection[str] = ()) -> int:
    """Bytes at the worst moment: all inputs at first, then before each op what is alive, and its least run."""
    ops = graph.ops
    size = {tensor["name"]: tensor["size"] for tensor in graph.tensors}
    role = {tensor["name"]: tensor["role"] for tensor in graph.tensors}
    readers = {name: {k for k, op in enumerate(ops) if name in op["reads"]} for name in size}
    runs = least_runs(graph, keep)
    alive = {name for name in size if role[name] in ("weight", "input")}
    peak = graph.resident + sum(size[name] for name in alive)
    alive -= {name for name in alive if role[name] == "input" and not readers[name] and name not in keep}
    done: set[int] = set()
    for k in order:
        op = ops[k]
        assert k not in done
        assert alive.issuperset(op["reads"])
        writes, workspace = runs[k]
        alive |= writes
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
    runs = least_runs(graph, keep)
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

    first = graph.resident + sum(tensor["size"] for tensor in tensors if tensor["role"] in ("input", "weight"))
    best: dict[int, tuple[int, list[int]]] = {0: (first, [])}  # by what has run: its best peak and order
    for _ in ops:
        grown: dict[int, tuple[int, list[int]]] = {}
        for done, (peak, order) in best.items():
            before = bytes_after(done)
            for k, (writes, workspace) in enumerate(runs):
                if done >> k & 1 or any(not done >> other & 1 for other in needs[k]):
                    continue
                now = before + sum(size[name] for name in writes) + workspace
                candidate = (max(peak, now), [*order, k])
                if done | 1 << k not in grown or candidate < grown[done | 1 << k]:
                    grown[done | 1 << k] = candidate
        best = grown
    return best[(1 << len(ops)) - 1]
