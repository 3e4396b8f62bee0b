"""The order of compiled kernels that holds the least memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from memsched import _core
from memsched._core import Graph

_TICKS = 2000  # of the search: a second or two, and the same on all machines


class Kernel(NamedTuple):
    """What a kernel reads and writes, by name, and the kernels that must run before it, by place."""

    reads: set[str]
    writes: set[str]
    after: set[int]


def least_memory(kernels: Sequence[Kernel], sizes: Mapping[str, int], stay: Collection[str]) -> list[int]:
    """Kernels in the order that holds the least, by place; as they are given if no other holds less.

    `sizes` are the bytes of all buffers. Those that no kernel writes are there before, and all but those that `stay`
    end with their last reader.
    """
    graph = _as_graph(kernels, sizes)
    keep = [int(name in stay) for name in _core.tensor_names(graph)]
    given = list(range(len(kernels) + 1))
    found, peak, _, _ = _core.order(graph, keep, None, ticks=_TICKS)
    best = found if peak < _core.order_peak(graph, keep, given) else given
    return [op - 1 for op in best if op > 0]


def _as_graph(kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> Graph:
    """Op 0 writes what is there before, and op k + 1 is kernel k; what has no bytes keeps their order."""
    written = {name for kernel in kernels for name in kernel.writes}
    before = [name for name in sizes if name not in written]
    tensors: list[dict[str, Any]] = [{"name": name, "size": size, "role": "activation"} for name, size in sizes.items()]
    tensors += [{"name": f"after {k}", "size": 0, "role": "activation"} for k in range(len(kernels) + 1)]
    ops = [_op(0, (), [*before, "after 0"])]
    for k, kernel in enumerate(kernels, 1):
        order = [f"after {k}" for k in (0, *sorted(one + 1 for one in kernel.after))]
        ops.append(_op(k, [*sorted(kernel.reads - kernel.writes), *order], [*sorted(kernel.writes), f"after {k}"]))
    return Graph(tensors=tensors, ops=ops, name="kernels", batch=1)


def _op(number: int, reads: Collection[str], writes: Collection[str]) -> dict[str, Any]:
    choices = [{"alg": "kernel", "time": 0, "workspace": 0}]
    return {"name": str(number), "phase": "fwd", "reads": [*reads], "writes": [*writes], "choices": choices}
