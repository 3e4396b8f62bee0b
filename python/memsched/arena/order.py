"""The order of a graph's ops with the least peak memory."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from memsched import _core
from memsched._core import Graph
from memsched.errors import InvalidInputError, shown
from memsched.problems.problem import Problem, graph_of
from memsched.support import checks, quantities
from memsched.support.docstrings import documented
from memsched.support.formats import counted
from memsched.support.types import Progress, Quantity
from memsched.support.views import Columns, Shown, Tabular

METHODS = ("search", "ilp", "published", "listed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Tabular, Shown):
    """An order of the ops of a graph, and what is proven about it. As a data frame, a row for each op.

    Attributes
    ----------
    order : tuple of str
        Names of the ops, each once, each after those it reads from.
    peak_memory : int
        Bytes, resident included: the most that is held at once.
    lower_bound : int
        Bytes, resident included: no order has a lower peak.
    method : str
    runtime : float
        Seconds.
    visited : int
        Sets of ops visited by the search; 0 if bounds alone prove the order.
    """

    order: tuple[str, ...]
    peak_memory: int
    lower_bound: int
    method: str
    runtime: float = field(compare=False)
    visited: int = 0

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no order has a lower peak."""
        return self.peak_memory == self.lower_bound

    @property
    def gap(self) -> float:
        """(peak_memory - lower_bound) / lower_bound; 0 when the bound is 0."""
        return (self.peak_memory - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0

    def _columns(self) -> Columns:
        return {"op": (str, list(self.order))}

    def __repr__(self) -> str:
        return (
            f"Order({counted(len(self.order), 'op')}, peak_memory={self.peak_memory}, lower_bound={self.lower_bound}, "
            f"optimal={self.optimal})"
        )


@documented
def order(
    graph: Problem,
    *,
    method: str = "search",
    time_limit: Quantity | None = 10.0,
    keep: Iterable[str] = (),
    progress: Progress = None,
) -> Order:
    """Find the order of the ops with the least peak memory, with a proof.

    Every op runs once. While it runs, its reads, its writes and its workspace (that of the algorithm with the least)
    are held, plus all that later ops read; a tape that no op reads is skipped if that takes less. A tensor is freed
    after its last reader; if nobody reads it, after its writer. Weights stay. All inputs exist at the start; one that
    no op reads is freed before the first op. In a graph with persistent tensors, these and inputs stay, too, and each
    op reads persistent tensors after the updates that the graph lists before it, and before those that it lists after.

    "search" bounds the peak from below by minimum cuts, one per relevant op, and from above by greedy orders that know
    which runs lose nothing. If the two do not meet, a best-first search over sets of ops follows, forwards and
    backwards in time. On training steps of thousands of ops the bounds nearly always meet. If more than some 32,000
    ops are connected, the cuts would need more than 256 MiB; then the bound is the largest need of one op.

    Parameters
    ----------
    graph : Graph, Chain or GraphFamily
        For a chain: its graph. For a family: its graph at full batch.
    method : str
        "search"; "ilp" for the integer program of the paper, solved by HiGHS (needs memsched[ilp]), for graphs of up to
        some 40 ops; "published" for that program with the paper's own shortcuts, which exclude better orders; "listed"
        for the order of the graph itself, with bounds.
    time_limit : float, str or None
        Seconds after which the best order so far is returned, with the bound proven so far.
    keep : iterable of str
        Names of tensors that stay until the end, such as the outputs of a model.

    Returns
    -------
    Order
        Never worse than the listed order, except by "published".

    References
    ----------
    Steiner et al., "OLLA: Optimizing the Lifetime and Location of Arrays to Reduce the Memory Usage of Neural
    Networks", 2022, eq. (14); for "published" also its sections 4.1 (eqs. 10 to 12) and 4.3 (functions 3 and 4).

    Examples
    --------
    >>> import memsched as ms
    >>> tensors = [{"name": name, "size": size, "role": "activation"} for name, size in [("a", 1), ("b", 9), ("c", 1)]]
    >>> def op(name, reads, writes):
    ...     choices = [{"alg": "default", "time": 1.0, "workspace": 0}]
    ...     return dict(name=name, phase="fwd", kind="op", layer=0, reads=reads, writes=writes, choices=choices)
    >>> ops = [op("A", [], ["a"]), op("B", [], ["b"]), op("C", ["b"], ["c"]), op("D", ["a", "c"], [])]
    >>> found = ms.order(ms.Graph(tensors, ops))
    >>> found.order, found.peak_memory, found.optimal
    (('B', 'C', 'A', 'D'), 10, True)
    """
    begin = time.perf_counter()
    graph = graph_of(graph)
    if graph.persistent:
        graph = _core.with_control_edges(graph)
    limit = quantities.time_limit(time_limit)
    flags = kept(graph, keep)
    checks.choice("method", method, METHODS)
    names = _core.op_names(graph)
    if method in ("ilp", "published"):
        from memsched.arena.ilp.order import order_ilp

        stay, short = frozenset(k for k, flag in enumerate(flags) if flag), method == "published"
        solved = order_ilp(graph, keep=stay, time_limit=limit, compressed=short, control_edges=short)
        ids, peak, bound, visited = solved.order, solved.peak_memory, solved.lower_bound, 0
    elif method == "listed":
        ids = list(range(len(names)))
        peak, visited = _core.order_peak(graph, flags, ids), 0
        bound = _core.order_bound(graph, flags, limit, progress)
    else:
        left = None if limit is None else max(0.0, limit - (time.perf_counter() - begin))
        ids, peak, bound, visited = _core.order(graph, flags, left, progress)
    return Order(
        order=tuple(names[k] for k in ids),
        peak_memory=peak,
        lower_bound=min(bound, peak),
        method=method,
        runtime=time.perf_counter() - begin,
        visited=visited,
    )


def kept(graph: Graph, keep: Iterable[str]) -> list[int]:
    """1 for the tensors that stay until the end, else 0; InvalidInputError if a name is not a tensor."""
    if not checks.is_list(keep) and not isinstance(keep, set | frozenset):
        raise InvalidInputError(f"keep is {shown(keep)}; it must be a list of names of tensors")
    number = {name: k for k, name in enumerate(_core.tensor_names(graph))}
    flags = [0] * len(number)
    for name in keep:
        if not isinstance(name, str) or name not in number:
            raise InvalidInputError(f"keep has {shown(name)}, which is no tensor of '{graph.name}'")
        flags[number[name]] = 1
    return flags
