"""OLLA (Steiner et al., 2022): the order of the ops and the address of every tensor, for the least memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memsched import _core
from memsched._core import Device, Graph
from memsched.arena.order import kept
from memsched.arena.placement import Placement, place_buffers
from memsched.arena.residency import Residency, as_buffers, as_columns
from memsched.errors import LimitError
from memsched.planners.call import begin
from memsched.planners.entry import Planner
from memsched.problems.problem import Problem, graph_of
from memsched.result import Result
from memsched.support import checks, quantities
from memsched.support.types import Progress, Quantity, Size

if TYPE_CHECKING:
    from memsched.arena.ilp.joint import JointSolution

_SECONDS = 10.0
_TRIES = 20
_ORDER_SHARE = 2 / 3  # of the time limit
_AFTER = 4e-6  # seconds an op, for the steps, their simulation and the buffers
_ALL_ORDERS = 9  # graphs of up to this many ops: every order is placed


def least_memory(problem: Problem) -> int:
    """The height of the arena, resident included, that `olla` finds by default."""
    graph = graph_of(problem)
    search, ids, _ = _started(graph, kept(graph, ()), time.perf_counter(), _SECONDS, 1, None)
    return search.height(search.improve(search.place(ids), _TRIES, 0)[0])


@Planner(
    "the order and the addresses that hold the least, nothing moves",
    needs=least_memory,
    problems=("graph",),
    reorders=True,
    seconds_an_op=(1e-5, 1e-5),
)
def olla(
    problem: Problem,
    M: Quantity | None = None,
    beta: Quantity | None = None,
    *,
    device: Device | None = None,
    method: str = "search",
    time_limit: Quantity = _SECONDS,
    keep: Iterable[str] = (),
    alignment: Size = 1,
    tries: int = _TRIES,
    seed: int = 0,
    progress: Progress = None,
) -> Result:
    """Run each op once, in the order with the least memory, with an address for every tensor.

    First the order is found (`order`), then the addresses (`place`). If the arena comes out higher than the peak of the
    order, other orders of the same peak are placed too; on small graphs all orders are, so that both problems are
    solved as one. "ilp" solves them as one by the paper's integer program. Nothing is offloaded and nothing recomputed.
    An op uses its fastest algorithm whose workspace does not raise the peak; all ops use the least workspace if the
    addresses would end above the peak otherwise.

    Parameters
    ----------
    M : int
        Bytes, resident included. The plan does not depend on it; a plan that needs more is refused.
    beta : float
        Ignored; accepted because all planners take it.
    method : str
        "search", or "ilp" for the paper's integer programs, solved by HiGHS (memsched[ilp]), for at most 100 ops: the
        order, then its addresses, and if these leave a gap, both at once, which seldom ends beyond some 20 ops.
    time_limit : float or str
        Seconds: at most two thirds for the order, the rest for the addresses. "ilp": a third for each program.
    keep : iterable of str
        Names of tensors that stay until the end.
    alignment : int or str
        Addresses are multiples of this many bytes; inputs and weights are packed from 0 without gaps.
    tries : int
        Most other orders to place, if the first cannot be placed without a gap. "ilp" places none.

    Returns
    -------
    Result
        With addresses in schedule and placement. params has peak_bound, bytes (resident included) that every order
        needs, by "ilp" with any addresses, and memory_optimal, whether the arena is proven to be the lowest of any
        order.

    Raises
    ------
    InfeasibleError
        The arena needs more than M.
    LimitError
        The graph is too large for "ilp".
    MemschedError
        "ilp" needs highspy, which is not installed.

    References
    ----------
    Steiner et al., 2022, eqs. (9), (14), (15) and function 1.

    Examples
    --------
    >>> import memsched as ms
    >>> graph = ms.profiles.load_graph("resnet50-224-b32")
    >>> result = ms.olla(graph, M=ms.peak_memory(graph))
    >>> result.params["memory_optimal"], result.placement.fragmentation
    (True, 0.0)
    """
    call = begin(olla, problem, M, beta, device)
    graph, room = call.graph, call.device.memory
    limit = quantities.seconds("time_limit", time_limit)
    call.check_time(limit)
    alignment = quantities.alignment(alignment)
    tries = checks.count("tries", tries, 0, 10**6)
    seed = checks.count("seed", seed, 0, 2**63 - 1)
    checks.choice("method", method, ("search", "ilp"))
    flags, of_all = kept(graph, keep), False
    if method == "ilp":
        search, placed, peak_bound = _by_program(graph, flags, call.started, limit, alignment)
    else:
        search, ids, peak_bound = _started(graph, flags, call.started, limit, alignment, progress)
        placed, of_all = search.improve(search.place(ids), tries, seed)
    height = search.height(placed)
    optimal = of_all or height <= peak_bound
    if height > room:
        raise call.no_plan(height, "its arena does not fit, even in the best order that it found", enough=not optimal)
    params = {"method": method, "alignment": alignment, "peak_bound": peak_bound, "memory_optimal": optimal}
    planner = {"name": "olla", **params}
    schedule = _core.order_schedule(
        graph, placed.ids, search.flags, placed.limit, room, planner, addresses=placed.offsets
    )
    return call.result(params, schedule, placement=search.placement(placed))


def _started(
    graph: Graph, flags: list[int], started: float, limit: float, alignment: int, progress: Progress
) -> tuple[_Search, list[int], int]:
    """The search for addresses, the best order, and bytes below which no order has its peak, resident included.

    `limit` seconds after `started`, less what the rest of the plan takes, the time for the addresses is over too.
    """
    limit -= _AFTER * _core.op_count(graph)
    left = max(0.0, started + _ORDER_SHARE * limit - time.perf_counter())
    ids, peak, bound, _ = _core.order(graph, flags, left, progress)
    search = _Search(graph=graph, flags=flags, alignment=alignment, method="search", peak=peak, until=started + limit)
    return search, ids, min(bound, peak)


def _by_program(
    graph: Graph, flags: list[int], started: float, limit: float, alignment: int
) -> tuple[_Search, _Placed, int]:
    """Find order and addresses by the integer programs; also bytes, resident included, below which no arena ends."""
    from memsched.arena.ilp.joint import MOST_OPS, joint_ilp

    if (count := _core.op_count(graph)) > MOST_OPS:
        raise LimitError(
            f"the integer program of olla takes at most {MOST_OPS} ops, and '{graph.name}' has {count}; take "
            "method='search', or order and place with method='ilp', one after the other"
        )
    left = max(0.0, started + limit - time.perf_counter())
    stay = frozenset(k for k, flag in enumerate(flags) if flag)
    found = joint_ilp(graph, keep=stay, alignment=alignment, time_limit=left)
    peak = found.height + graph.resident
    search = _Search(graph=graph, flags=flags, alignment=alignment, method="ilp", peak=peak, until=started + limit)
    bound = found.peak_bound if search.could_split(found.order) else found.lower_bound
    fast, least = search.place_within(found.order, search.peak), search.of_program(found)
    return search, fast if fast.height <= least.height else least, bound + graph.resident


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """An order with addresses; fast algorithms were allowed up to `limit` bytes, resident included.

    `lowest`: it is proven that no addresses of this order end lower, whatever the algorithms; only for small graphs.
    """

    ids: list[int]
    limit: int
    offsets: list[int]
    height: int  # of the arena
    bound: int  # a lower bound on the height, whatever the offsets
    seconds: float
    lowest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for addresses, once the best order is known, or what an integer program has found."""

    graph: Graph
    flags: list[int]
    alignment: int
    method: str
    peak: int  # bytes of the best order, resident included; of an integer program, those of its arena
    until: float

    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.until - time.perf_counter())

    def residency(self, ids: list[int], limit: int) -> Residency:
        """The buffers of the order."""
        return _core.order_residency(self.graph, ids, self.flags, limit)

    def placement(self, placed: _Placed) -> Placement:
        """The addresses as a Placement."""
        return Placement(
            buffers=tuple(as_buffers(self.residency(placed.ids, placed.limit), self.graph, self.alignment)),
            offsets=tuple(placed.offsets),
            height=placed.height,
            lower_bound=min(placed.bound, placed.height),
            method=self.method,
            runtime=placed.seconds,
        )

    def height(self, placed: _Placed) -> int:
        """Bytes, resident included."""
        return placed.height + self.graph.resident

    def place(self, ids: list[int]) -> _Placed:
        """The addresses of an order, with fast algorithms or the least workspaces, whichever is lower."""
        found: list[_Placed] = []
        for limit in (self.peak, 0):
            found.append(self.place_within(ids, limit))
            if self.height(found[-1]) <= self.peak or self.left() == 0:
                break
        last, small = found[-1], len(ids) <= _ALL_ORDERS
        lowest = small and last.limit == 0 and last.bound >= last.height and not self.could_split(ids)
        return replace(min(found, key=self.height), lowest=lowest)

    def place_within(self, ids: list[int], limit: int) -> _Placed:
        """The addresses of an order, with fast algorithms as far as the limit allows."""
        began = time.perf_counter()
        residency = self.residency(ids, limit)
        if self.method == "ilp":
            buffers = as_buffers(residency, self.graph, self.alignment)
            placement = place_buffers(buffers, time_limit=self.left(), method="ilp")
            offsets, height, bound = list(placement.offsets), placement.height, placement.lower_bound
        else:
            columns = as_columns(residency, self.alignment)
            offsets, height, bound = _core.place(*columns, None, search=True, time_limit=self.left())
        seconds = time.perf_counter() - began
        return _Placed(ids=ids, limit=limit, offsets=offsets, height=height, bound=bound, seconds=seconds, lowest=False)

    def of_program(self, found: JointSolution) -> _Placed:
        """The solution of an integer program, whose ops use the least workspaces."""
        residency = self.residency(found.order, 0)
        scratch = (found.workspaces[op] for op in found.order if op in found.workspaces)
        offsets = [next(scratch) if tensor < 0 else found.offsets[tensor] for tensor in residency[0].tolist()]
        own = _core.load(*(column.tolist() for column in residency[1:4]))
        bound = max(own, found.lower_bound)
        return _Placed(
            ids=found.order, limit=0, offsets=offsets, height=found.height, bound=bound, seconds=0.0, lowest=False
        )

    def could_split(self, ids: list[int]) -> bool:
        """Whether a run skips its tape for a larger workspace. Run in full, it may fit: in two buffers, not in one."""
        ops = {op["name"]: op for op in self.graph.ops}
        plain = _core.order_schedule(self.graph, ids, self.flags, 0, checks.EXACT_BYTES, {"name": "olla"})
        skipping = [ops[step["run"]] for step in plain.to_json()["steps"] if step.get("skip")]
        return any(
            op.get("skip_workspace", 0) > min(choice["workspace"] for choice in op["choices"]) for op in skipping
        )

    def improve(self, best: _Placed, tries: int, seed: int) -> tuple[_Placed, bool]:
        """Place other orders while the arena is higher than the peak: all orders of a small graph, else random ones.

        Also returns whether it is proven that no order has a lower arena.
        """
        small = len(best.ids) <= _ALL_ORDERS
        complete = small and best.lowest
        lowest = [best]
        for ids in self.all_orders(lowest) if small else self.random_orders(tries, seed):
            if self.height(lowest[0]) <= self.peak or self.left() == 0:
                return lowest[0], False  # the caller compares it with the bound of the order
            if _core.order_peak(self.graph, self.flags, ids) < self.height(lowest[0]):
                other = self.place(ids)
                complete = complete and other.lowest
                lowest[0] = min(lowest[0], other, key=self.height)
        return lowest[0], complete and self.left() > 0

    def random_orders(self, tries: int, seed: int) -> Iterator[list[int]]:
        """Random orders that keep to the peak where possible."""
        for k in range(tries):
            ids = _core.order_within(self.graph, self.flags, self.peak, seed + k, self.left())
            if not ids:  # out of time
                return
            yield ids

    def all_orders(self, lowest: list[_Placed]) -> Iterator[list[int]]:
        """All orders whose prefixes stay below the arena of lowest[0]."""
        writer = {name: k for k, op in enumerate(self.graph.ops) for name in op["writes"]}
        before = [{writer[name] for name in op["reads"] if name in writer} for op in self.graph.ops]

        def extend(ran: list[int]) -> Iterator[list[int]]:
            if len(ran) == len(before):
                yield list(ran)
            for k, needed in enumerate(before):
                if k not in ran and needed <= set(ran):
                    longer = [*ran, k]
                    if self.left() > 0 and _core.order_peak(self.graph, self.flags, longer) < self.height(lowest[0]):
                        yield from extend(longer)

        return extend([])
