"""The work of a worker: plan some points of one group, in this process or another."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from memsched import _core
from memsched._core import Chain, Device, RematTable
from memsched.errors import MemschedError
from memsched.planners.call import Draft
from memsched.planners.entry import Figures, takes
from memsched.planners.registry import PLANNERS
from memsched.planners.remat.recompute import make_table
from memsched.problems.problem import Problem, peak_memory
from memsched.result import Result
from memsched.study.auto import plan_of
from memsched.study.sources import find_problem
from memsched.study.sweep.rows import Row, figured, planned, unplanned

KEPT_TABLES = 2
AT_ONCE = 16  # points that are planned before the time is checked


STOP = threading.Event()  # in a worker process: set when the sweep is interrupted


class StoppedError(Exception):
    """The sweep was interrupted while this point was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Points of one group, in a form that can be sent to a worker."""

    problem: str | Problem  # its name, if it has one
    key: str  # the key of the problem
    planner: str
    options: dict[str, Any]
    table_slots: int | None
    devices: tuple[Device, ...]


def run(work: Work, seconds: float, stop: threading.Event = STOP) -> list[Row]:
    """Plan the first points, as many as fit in `seconds` but at least one, and return their figures.

    The caller asks again for the rest, so finished points are returned early. When `stop` is set the list may be empty.
    """
    deadline = time.perf_counter() + seconds
    rows: list[Row] = []
    _core.listen(partial(_check, stop))
    try:
        plan, figures = planning(work), _figures(work)
        step = 1 if figures is None else AT_ONCE
        for first in range(0, len(work.devices), step):
            if rows and time.perf_counter() > deadline:
                break
            _check(stop)
            some = work.devices[first : first + step]
            found = [None] * len(some) if figures is None else figures(some)
            for device, one in zip(some, found, strict=True):
                rows.append(_plan_point(plan, device) if one is None else figured(one))
    except StoppedError:
        pass
    finally:
        _core.listen(None)
    return rows


def _plan_point(plan: Callable[[Device], Result], device: Device) -> Row:
    try:
        return planned(plan(device))
    except MemschedError as error:
        return unplanned(error)


def _figures(work: Work) -> Figures | None:
    """The function that plans many points at once, if the planner has one for these options."""
    known = PLANNERS.get(work.planner)
    offered = None if known is None else known.figures
    if offered is None:
        return None
    try:
        return offered(_problem(work), **work.options)
    except MemschedError:  # recorded for each point, later
        return None


def _problem(work: Work) -> Problem:
    return _named(work.problem) if isinstance(work.problem, str) else work.problem


def planning(work: Work) -> Callable[[Device], Result]:
    """The planner with everything set but the device."""
    problem = _problem(work)
    plan: Callable[..., Result] = plan_of(work.planner)
    if work.table_slots is not None:
        assert isinstance(problem, Chain)
        with_table = PLANNERS[work.planner].with_table
        assert with_table is not None
        plan = partial(with_table, table=_table(work.key, problem, work.table_slots))
    ours = takes(plan, {"threads": 1})

    def plan_on(device: Device) -> Result:
        return plan(problem, device=device, **work.options, **ours)

    known = PLANNERS.get(work.planner)
    return plan_on if known is None or known.uses_link else _once_per_memory(plan_on)


def _once_per_memory(plan: Callable[[Device], Result]) -> Callable[[Device], Result]:
    """For planners that ignore the link: simulate the last plan again while the memory is the same."""
    last: list[Result] = []

    def plan_on(device: Device) -> Result:
        if last and last[0].device.memory == device.memory:
            return Draft.of(last[0]).on(last[0].problem, device)
        last[:] = [plan(device)]
        return last[0]

    return plan_on


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError


_named = lru_cache(maxsize=4)(find_problem)
_tables: OrderedDict[tuple[str, int], RematTable] = OrderedDict()
_making = threading.Lock()


def _table(key: str, chain: Chain, slots: int) -> RematTable:
    """The table for all memories up to the plain peak, shared by the threads of a process."""
    with _making:
        if (key, slots) not in _tables:
            while len(_tables) >= KEPT_TABLES:
                _tables.popitem(last=False)
            capacity = max(1, peak_memory(chain) - chain.resident)
            _tables[key, slots] = make_table(chain, capacity, slots, threads=1)
        _tables.move_to_end((key, slots))
        return _tables[key, slots]
