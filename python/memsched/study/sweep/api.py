"""`sweep` and `read_store`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from memsched._core import Device
from memsched.errors import InvalidInputError, MemschedError, StoreError, shown
from memsched.problems.family import GraphFamily
from memsched.problems.problem import Problem, problem_from
from memsched.result import Result
from memsched.study.sources import named_problem
from memsched.study.sweep.arguments import read_groups
from memsched.study.sweep.memory import Memory
from memsched.study.sweep.points import Group, check_kind, check_options, known_keys, table_slots, written
from memsched.study.sweep.rows import MOST_SLOTS, Row, device_of
from memsched.study.sweep.table import Sweep, SweepProgress
from memsched.support import checks
from memsched.support.arguments import public
from memsched.support.documents import Document
from memsched.support.files import path_of
from memsched.support.interrupt import Interrupts

if TYPE_CHECKING:
    from concurrent.futures import Executor

_GUARD = 'the worker processes cannot start; in a script, call sweep under `if __name__ == "__main__":`'


@public
def sweep(
    problems: Sequence[Problem | str | os.PathLike[str]] | Problem | str | os.PathLike[str],
    planners: Sequence[str] | None = None,
    *,
    memory: Sequence[float | str] | float | str,
    beta: Sequence[float | str] | float | str | None = None,
    device: Device | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    shared_tables: bool = True,
    slots_of_tables: int | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    retry_failed: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Plan every problem with every planner for every memory and bandwidth.

    A point that cannot be planned, or whose planner fails, is recorded with its error, and the sweep goes on. With a
    store no point is planned twice: neither after an interruption, nor by two sweeps at once, nor in a later sweep.

    Parameters
    ----------
    problems : Chain, Graph, GraphFamily, str or path, or a sequence of them
        A str is the name of a shipped profile, graph:NAME, analytic:NETWORK:BATCH[:GPU], or the path of a file. Of a
        family made by a function, the graphs at the full batch and at powers of two are swept; for others give
        GraphFamily.from_json(family.to_json(batches)).
    planners : sequence of str, or str, optional
        Names, in a list or in a text with commas; "auto" is allowed. By default all listed planners for each problem.
    memory : int or str, or a sequence of them
        Budgets: bytes, "8GiB", or "40%" for that far from min_memory to peak_memory of each problem.
    beta : float or str, or a sequence of them, optional
        Bandwidths: bytes per second, "12GB/s", "inf", or "profile" for the link of each profile; of problems without
        one that of PCIe 3.0 x16, 12.2 GB/s, with a warning. "profile" is the default, unless `device` is given.
    device : Device, optional
        Gives duplex, latency and host_memory; memory and beta override the rest.
    options : mapping, optional
        By planner: {"dynprog": {"slots": 200}}. Those under "all" go to every planner that takes them
        for the problem; so `chunk` goes to chains only.
    shared_tables : bool
        Whether rotor and pofo answer all memories of a chain from one table, as `frontier` does. Slots then divide
        the peak of the plain run, so that a point does not depend on what else is swept.
    slots_of_tables : int, optional
        Slots of such tables; by default as many as fit in 240 MB, at most 2000.
    store : path, optional
        A SQLite file, created if it does not exist. Points found in it are not planned again.
    executor : "threads", "processes" or concurrent.futures.Executor, optional
        Where points are planned. By default on threads, since planners release the GIL. Executors of Dask
        (client.get_executor()) and MPI work too. Your executor is not shut down.
    jobs : int, optional
        Threads or processes; for your own executor, how many batches are in flight. By default one per core.
    retry_failed : bool
        Whether points that failed before are planned again. Infeasible points are not.
    progress : callable, optional
        Called with a SweepProgress about ten times a second.

    Returns
    -------
    Sweep
        One row per point, ordered by problem, planner, memory and bandwidth as given. Points that are the same, such as
        those of two equal memories, come once; so do those of problems that differ in their names only, under the name
        that came first.

    Raises
    ------
    InvalidInputError
        A bad argument, before anything is planned. The value of an option that its planner alone knows to be wrong
        fails its points.
    LimitError
        More than a million points.
    StoreError
        The store cannot be read or written; its content is kept.
    KeyboardInterrupt
        Raised once all finished points are in the store.

    Examples
    --------
    >>> import memsched as ms
    >>> table = ms.sweep("resnet18-224-b32", ["greedy", "rotor"], memory=["20%", "60%"], beta=["12GB/s"])
    >>> [(row["planner"], row["status"]) for row in table]
    [('greedy', 'planned'), ('greedy', 'planned'), ('rotor', 'planned'), ('rotor', 'planned')]
    """
    with Interrupts():  # what is imported by half cannot be imported again
        import multiprocessing.process

        from memsched import __version__  # imported here so that `import memsched` stays light
        from memsched.study.sweep.drive import Drive
        from memsched.study.sweep.store import Store

    here = multiprocessing.process.current_process()
    if getattr(here, "_inheriting", False):  # a worker is importing its parent's script
        raise MemschedError(_GUARD)
    shared_tables = checks.flag("shared_tables", shared_tables)
    retry_failed = checks.flag("retry_failed", retry_failed)
    checks.progress(progress)
    if slots_of_tables is not None:
        slots_of_tables = checks.count("slots_of_tables", slots_of_tables, 1, MOST_SLOTS)
    workers = checks.count("jobs", jobs, 1, 10_000) if jobs is not None else os.cpu_count() or 1
    if store is not None and path_of(store, "store") == ":memory:":
        raise InvalidInputError(f"store is {shown(store)}; give the path of a file, or None to keep nothing")
    interrupts = Interrupts()
    with interrupts:
        with interrupts.allowed():
            slots = (shared_tables, slots_of_tables)
            loaded, groups = read_groups(problems, planners, memory, beta, device, options, slots, __version__)
        start, owned = _executor(executor, workers, interrupts)
        opened: Store | Memory = Memory() if store is None else Store(store, retry_failed=retry_failed)
        with closing(opened):
            for one in loaded:
                opened.add_problem(one)
            keys = list(dict.fromkeys(key for one in groups for key in one.keys))
            drive = Drive(_once(groups), opened, start, workers, progress, owned, interrupts)
            drive.run()
            return Sweep(opened.rows(keys), claimed=drive.kept > 0)


@public
def read_store(path: str | os.PathLike[str]) -> Sweep:
    """All points of a store, from every sweep that used it.

    Parameters
    ----------
    path : path
        The file that a sweep wrote, or is writing.

    Returns
    -------
    Sweep
        Ordered by problem, planner, options, memory and bandwidth. Its figures are `claimed`.

    Raises
    ------
    StoreError
        There is no such file, or it is not a store, or it has another version.

    Examples
    --------
    >>> import memsched as ms, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "sweep.sqlite")
    >>> _ = ms.sweep("resnet18-224-b32", ["greedy"], memory=["50%"], store=path)
    >>> ms.read_store(path)
    Sweep(1 point: 1 planned, 0 infeasible, 0 failed)
    """
    from memsched.study.sweep.store import Store

    with closing(Store(path, read_only=True)) as opened:
        return Sweep(opened.rows(), claimed=True)


@public
def plan_again(path: str | os.PathLike[str], key: str) -> Result:
    """Plan a point of a store again to see its plan: a store keeps figures, not schedules.

    Parameters
    ----------
    path : path
        The store.
    key : str
        The key of the point, `row["key"]`, or the beginning of it that no other point has.

    Returns
    -------
    Result
        The same plan as in the sweep, unless the planner had a time limit.

    Raises
    ------
    InvalidInputError
        The store has no such point.
    InfeasibleError
        As in the sweep.
    StoreError
        The store cannot be read, or the point is not one that this memsched plans.

    Examples
    --------
    >>> import memsched as ms, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "sweep.sqlite")
    >>> table = ms.sweep("resnet18-224-b32", ["rotor"], memory=["50%"], store=path)
    >>> ms.plan_again(path, table.rows[0]["key"]).makespan == table.rows[0]["makespan"]
    True
    """
    from memsched.study.sweep.store import Store
    from memsched.study.sweep.work import Work, planning

    if isinstance(key, Mapping):
        raise InvalidInputError(f'key is {shown(key)}; give row["key"] of the row')
    checks.text("key", key)
    with closing(Store(path, read_only=True)) as opened:
        row = next(iter(opened.rows([key])), None)
        if row is None:
            near = [one for one in opened.rows() if one["key"].startswith(key)]
            if len(near) != 1:
                found = f"{len(near)} points whose keys begin with {key!r}" if near else f"no point {key!r}"
                raise InvalidInputError(f"'{opened.path}' has {found}; rows have theirs under 'key'")
            row = near[0]
        source, document = opened.problem(row["problem_key"])
        try:
            problem = _problem_again(row, source, document)
        except InvalidInputError as error:
            raise StoreError(f"'{opened.path}' has a point {key!r} that cannot be planned again: {error}") from error
    work = Work(
        problem=problem,
        key=row["problem_key"],
        planner=row["planner"],
        options=row["options"],
        table_slots=row["table_slots"],
        devices=(),
    )
    return planning(work)(device_of(row))


def _problem_again(row: Row, source: str | None, document: Document) -> Problem:
    """The problem of a stored point; InvalidInputError if no sweep of this version has such a point."""
    problem, planner, options, slots = problem_from(document), row["planner"], row["options"], row["table_slots"]
    if isinstance(problem, GraphFamily) and source is not None:
        named = named_problem(source)  # it has all batches
        if named is None or row["problem_key"] not in known_keys(written(named), source):
            raise InvalidInputError(f"{shown(source)} is not the name of its problem")
        problem = named
    check_options(planner, options)
    check_kind(problem, planner)
    if slots is not None and table_slots(problem, planner, options, slots) is None:
        raise InvalidInputError(f"{planner} with its options and problem uses no shared table")
    return problem


def _executor(
    given: Executor | str | None, workers: int, interrupts: Interrupts
) -> tuple[Callable[[], Executor], bool]:
    """A function that makes the executor, and whether we shut it down."""
    from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor, wait

    from memsched.study.sweep.drive import BEAT
    from memsched.study.sweep.processes import Processes

    if isinstance(given, Executor):
        return (lambda: given), False
    if given is None or (isinstance(given, str) and given == "threads"):
        return (lambda: ThreadPoolExecutor(workers, thread_name_prefix="memsched-sweep")), True
    if not isinstance(given, str) or given != "processes":
        raise InvalidInputError(
            f"executor is {shown(given)}; it must be 'threads', 'processes' or a concurrent.futures.Executor"
        )

    def start(again: bool = True) -> Executor:
        pool = Processes(workers)
        try:
            begun = pool.submit(int)
            with interrupts.allowed():
                while not wait([begun], BEAT).done:
                    pool.check()
                begun.result()
        except BrokenExecutor as error:
            if again:  # a worker may have been killed from outside
                return start(again=False)
            raise MemschedError(_GUARD) from error
        except BaseException:
            pool.stop()
            pool.shutdown(cancel_futures=True)
            raise
        return pool

    return start, True


def _once(groups: Sequence[Group]) -> list[Group]:
    """The groups without repeated points."""
    seen: set[str] = set()
    found: list[Group] = []
    for one in groups:
        first = {key: at for at, key in reversed(list(enumerate(one.keys))) if key not in seen}
        found.append(one.only(sorted(first.values())))
        seen.update(first)
    return found
