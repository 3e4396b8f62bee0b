"""The frontier of one planner: makespan against memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from memsched import _core
from memsched._core import Chain, Device
from memsched.errors import InfeasibleError, InvalidInputError, LimitError, shown
from memsched.planners.call import Draft, tried_until
from memsched.planners.entry import for_all, takes
from memsched.planners.registry import least_on, planner_named
from memsched.planners.remat.recompute import make_table, most_slots
from memsched.problems.budget import make_device, memory_of, memory_percent, refuse_percents
from memsched.problems.problem import ChunkLike, Problem, altered, graph_of, peak_memory
from memsched.result import Result
from memsched.study.auto import plan_of
from memsched.support import checks, quantities
from memsched.support.docstrings import documented
from memsched.support.formats import counted, format_bytes
from memsched.support.types import Progress, Quantity
from memsched.support.views import Columns, Drawn, Figures

MOST_SLOTS = 4000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frontier(Figures, Drawn):
    """The makespans of one planner over a range of memories.

    `plot` draws it as `plot_frontier` does; `to_pandas` and `to_polars` give a row for each memory, and
    `to_csv` writes them.

    Attributes
    ----------
    planner : str
    problem : Chain, Graph or GraphFamily
    device : Device
        The link; its memory is the largest on the curve.
    ideal : float
        Seconds that the training step takes with enough memory: the sum of all run times.
    memory : ndarray of int64
        Bytes, resident included, in increasing order.
    results : tuple of Result or None
        One per memory; None where the planner has no plan, or found none within its limits.
    """

    planner: str
    problem: Problem
    device: Device
    ideal: float
    results: tuple[Result | None, ...]
    memory: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.results)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frontier):
            return NotImplemented
        same = all(getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "memory")
        return same and np.array_equal(self.memory, other.memory)

    @property
    def makespan(self) -> npt.NDArray[np.float64]:
        """Simulated, seconds; infinite where the planner has no plan."""
        return np.array([np.inf if one is None else one.makespan for one in self.results])

    @property
    def estimate(self) -> npt.NDArray[np.float64]:
        """The planner's own value, seconds; NaN where it has none."""
        values = [None if one is None else one.estimate for one in self.results]
        return np.array([np.nan if value is None else value for value in values])

    @property
    def lower_bound(self) -> npt.NDArray[np.float64]:
        """Seconds; a bound on the plans that the planner can make; NaN where there is no plan."""
        return np.array([np.nan if one is None else one.lower_bound for one in self.results])

    @property
    def gap(self) -> npt.NDArray[np.float64]:
        """(makespan - lower_bound) / lower_bound; NaN where there is no plan."""
        return np.array([np.nan if one is None else one.gap for one in self.results])

    @property
    def peak_memory(self) -> npt.NDArray[np.int64]:
        """Simulated, bytes; 0 where there is no plan."""
        return np.array([0 if one is None else one.peak_memory for one in self.results], dtype=np.int64)

    def _columns(self) -> Columns:
        from memsched.study.sweep.rows import STATUSES, planned, point_of
        from memsched.study.sweep.table import columns_of

        named = ("problem", "planner", "memory", "memory_percent", "bandwidth")
        names = (*named, *STATUSES["planned"], "bound_on", "estimate", "ideal")
        outcomes = zip(self.memory.tolist(), self.results, strict=True)
        rows = [
            {"memory": at, "memory_percent": memory_percent(at, self.problem), **({} if one is None else planned(one))}
            for at, one in outcomes
        ]
        point = {"planner": self.planner, "ideal": self.ideal, **point_of(self.problem, self.device)}
        return columns_of([{**point, **row} for row in rows], *names)

    def __repr__(self) -> str:
        count = sum(one is not None for one in self.results)
        span = f"{format_bytes(int(self.memory[0]))} to {format_bytes(int(self.memory[-1]))}"
        plans = f"{counted(count, 'plan')} for {counted(len(self.results), 'memory', 'memories')}, {span}"
        return f"Frontier(planner={self.planner!r}, problem={self.problem.name!r}, {plans})"


@documented
def frontier(
    problem: Problem,
    beta: Quantity | None = None,
    *,
    planner: str | None = None,
    device: Device | None = None,
    memory: Sequence[Quantity] | None = None,
    points: int = 20,
    slots: int | None = None,
    chunk: ChunkLike = None,
    time_limit: Quantity | None = None,
    threads: int = 0,
    progress: Progress = None,
) -> Frontier:
    """Plan for a range of memories: the curve from which to choose a budget.

    rotor and pofo answer all memories of a chain from one table, since the table depends on a memory only through the
    free part of it. Other planners run once per point. More memory never gives a slower plan: if a planner's own plan
    would be slower, the point gets the best plan for less memory, and params["planned_for"] is the device of that plan.

    Parameters
    ----------
    problem : Chain, Graph or GraphFamily
    planner : str, optional
        A planner's name. By default pofo for chains, which is quick, and selective for graphs. "auto" is the best of
        all planners at each memory, as `plan` finds it, and takes as long.
    device : Device, optional
        Instead of beta, which overrides its bandwidth; its memory is not used.
    memory : sequence of int or str, optional
        Bytes, or texts such as "6GiB" and "40%"; resident included. By default `points` values, evenly from the
        planner's minimum to the plain peak; with a time_limit, from the least that is found in that time. Give them
        where the curves of several planners are to have the same memories.
    points : int
    slots : int, optional
        Of the shared table, over the largest memory. By default as many as fit in 240 MB, at most 4000. Refused where
        there is no shared table: with a time_limit, for graphs, and for other planners.
    time_limit : float or str, optional
        Seconds per point, for planners with a time limit. With it, pofo improves its transfers on the simulator.
    progress : callable, optional
        Called with a fraction from 0 to 1 after each point.

    References
    ----------
    Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021, section B.3: C_A(i, j, A, Delta) depends on M - A.

    Examples
    --------
    >>> import memsched as ms
    >>> chain = ms.Chain([1, 1, 1], [1, 1, 1], [4, 4, 4, 4], [4, 4, 4, 4])
    >>> curve = ms.frontier(chain, beta=0, planner="rotor", memory=[16, 20, 24])
    >>> curve.makespan.tolist()
    [inf, 8.0, 6.0]
    """
    graph, chunk = graph_of(problem), quantities.chunk(chunk)
    if planner is None:
        planner = "pofo" if isinstance(problem, Chain) else "selective"
    points = checks.count("points", points, 1, 100_000)
    time_limit = quantities.time_limit(time_limit)
    checks.progress(progress)
    link = make_device(problem, None if device is not None else 1, beta, device)
    with tried_until(time.perf_counter() + time_limit) if time_limit else nullcontext():
        memories = _memories(problem, planner, link, chunk, memory, points)
    link = altered(link, memory=memories[-1])
    threads = checks.count("threads", threads, 0, 1024)
    run, tabled = plan_of(planner), None
    if planner != "auto" and isinstance(problem, Chain):
        tabled = planner_named(planner).with_table
    if slots is not None:
        slots = checks.count("slots", slots, 1, 1_000_000)
        if tabled is None:
            raise InvalidInputError(f"slots is {slots}, of a table, and {planner} has no table; leave slots out")
        if time_limit:
            raise InvalidInputError(
                f"slots is {slots}, of a table that is not made with a time_limit; leave slots or time_limit out"
            )
    if tabled is not None and isinstance(problem, Chain) and not time_limit:  # its table takes long to make
        capacity = max(1, min(memories[-1], peak_memory(problem)) - problem.resident)
        table = make_table(problem, capacity, slots or min(MOST_SLOTS, most_slots(problem)), threads=threads)
        run = partial(tabled, table=table)
    options = takes(run, for_all(chunk=chunk, time_limit=time_limit))
    results: list[Result | None] = []
    best: Result | None = None
    found: Result | None
    for bytes_ in memories:
        device = altered(link, memory=bytes_)
        found = None
        with suppress(InfeasibleError, LimitError):
            found = run(problem, device=device, **options)
        best = _no_worse(best, found, device)
        results.append(best)
        if progress is not None:
            progress(len(results) / len(memories))
    column = np.array(memories, dtype=np.int64)
    column.setflags(write=False)
    return Frontier(
        planner=planner,
        problem=problem,
        device=link,
        ideal=_core.compute_time(graph),
        results=tuple(results),
        memory=column,
    )


def _no_worse(best: Result | None, found: Result | None, device: Device) -> Result | None:
    """The plan found, or the best plan for less memory if that is faster; it runs here too."""
    if best is None or (found is not None and found.makespan <= best.makespan):
        return found
    kept = Draft.of(best).on(best.problem, device)
    return kept if found is None or kept.makespan < found.makespan else found


def _memories(
    problem: Problem, planner: str, link: Device, chunk: ChunkLike, memory: Sequence[Quantity] | None, points: int
) -> list[int]:
    """In increasing order, without repeats."""
    if memory is not None:
        if not isinstance(memory, Sequence | np.ndarray) or not checks.is_list(memory) or not len(memory):
            as_list = f"as in [{shown(memory)}]" if isinstance(memory, str | int | float) else "not empty"
            raise InvalidInputError(f"memory is {shown(memory)}; give a list of sizes, {as_list}")
        given = [memory_of(one, problem, f"memory[{at}]") for at, one in enumerate(memory)]
        refuse_percents(given, problem)
        return sorted({int(one) for one in given})
    return spaced(least_on(problem, planner, link, chunk), peak_memory(problem), points)


def spaced(least: int, most: int, points: int, *more: int) -> list[int]:
    """Memories at equal distances, and more of them; in increasing order, without repeats."""
    return sorted({max(1, int(one)) for one in (*np.linspace(least, most, points), *more)})
