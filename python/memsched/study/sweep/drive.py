"""Hand the points of a sweep to an executor, and their figures to the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from memsched.errors import MemschedError, StoreError, shown
from memsched.study.sweep.memory import Memory
from memsched.study.sweep.points import Group
from memsched.study.sweep.processes import Processes
from memsched.study.sweep.rows import Row, unplanned
from memsched.study.sweep.store import Store
from memsched.study.sweep.table import SweepProgress
from memsched.study.sweep.work import Work, run
from memsched.support.interrupt import Interrupts

BATCH_SECONDS = 0.25  # of work before a worker returns
MOST_IN_BATCH = 64
BEAT = 1.0  # seconds between two heartbeats


@dataclass(frozen=True, slots=True)
class Batch:
    """Some points of a group, by index."""

    group: Group
    places: tuple[int, ...]
    deaths: int = 0  # workers that died with only this point

    @property
    def keys(self) -> list[str]:
        """The keys of its points."""
        return [self.group.keys[at] for at in self.places]

    def without(self, keys: Collection[str]) -> Batch:
        """The points with other keys."""
        return replace(self, places=tuple(at for at in self.places if self.group.keys[at] not in keys))

    def work(self, here: bool) -> Work:
        """The worker's input: the problem itself in this process, elsewhere its name if it has one."""
        group = self.group
        named = None if here else group.problem.source
        return Work(
            problem=group.problem.problem if named is None else named,
            key=group.problem.key,
            planner=group.planner,
            options=group.options,
            table_slots=group.table_slots,
            devices=tuple(group.devices[at] for at in self.places),
        )


class Drive:
    """One sweep in progress.

    A few batches are in flight at a time, and each returns after a fraction of a second, so that a kill loses little.
    If a worker raises or dies, its batch is tried again point by point. A point that fails alone is recorded with its
    error.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        store: Store | Memory,
        start: Callable[[], Executor],
        jobs: int,
        progress: Callable[[SweepProgress], None] | None,
        owned: bool,
        interrupts: Interrupts,
    ) -> None:
        self._store, self._start, self._jobs, self._owned = store, start, jobs, owned
        self._say, self._interrupts = progress, interrupts
        self._began = time.perf_counter()
        self._spoken = 0.0
        self._counts = {"planned": 0, "infeasible": 0, "failed": 0}
        self._stop = threading.Event()
        known = store.finished()
        self._points = sum(len(group.keys) for group in groups)
        left = [Batch(group, tuple(range(len(group.keys)))).without(known) for group in groups]
        to_plan = sum(len(batch.places) for batch in left)
        self.kept = self._points - to_plan  # already in the store, or added by another sweep
        most = max(1, min(MOST_IN_BATCH, to_plan // (4 * jobs)))
        self._waiting = deque(_mixed(left, most))
        self._suspects: deque[Batch] = deque()  # batches of one point, which may kill their worker
        self._elsewhere: list[Batch] = []  # claimed by other sweeps
        self._flying: dict[Future[list[Row]], Batch] = {}

    def run(self) -> None:
        """Run until every point is in the store."""
        self._executor = self._started()
        self._here = isinstance(self._executor, ThreadPoolExecutor)
        try:
            while not self._finished:
                self._send()
                self._receive()
                self._report()
        except BaseException as error:
            self._stop.set()
            if isinstance(self._executor, Processes):
                self._executor.stop()
            for future in self._flying:
                future.cancel()
            self._end(wait=True)
            if not isinstance(error, StoreError):
                self._keep({one for one in self._flying if one.done() and not one.cancelled()}, again=False)
            raise
        self._end(wait=True)
        self._report()

    @property
    def _finished(self) -> bool:
        return not (self._waiting or self._suspects or self._flying or self._elsewhere)

    def _end(self, *, wait: bool) -> None:
        if self._owned:
            self._executor.shutdown(wait=wait, cancel_futures=True)

    def _send(self) -> None:
        room = 1 if self._suspects else 2 * self._jobs
        while len(self._flying) < room and (self._suspects or self._waiting):
            batch = self._suspects.popleft() if self._suspects else self._waiting.popleft()
            mine = self._store.claim(batch.keys)
            if len(mine) < len(batch.places):
                self._elsewhere.append(batch.without(mine))
            if mine:
                self._submit(batch.without(set(batch.keys) - mine))

    def _submit(self, batch: Batch) -> None:
        stop = (self._stop,) if self._here else ()  # other processes have their own
        try:
            future = self._executor.submit(run, batch.work(self._here), BATCH_SECONDS, *stop)
        except BrokenExecutor as error:
            self._record(self._worker_died([(batch, error)]))
        except Exception as error:  # shut down, or unable to start a worker; those of others raise what they like
            if self._owned and not isinstance(error, RuntimeError | OSError):
                raise
            raise self._broken(error) from error
        else:
            if not isinstance(future, Future):
                raise self._broken(TypeError(f"submit returned {shown(future)}, which is no Future"))
            self._flying[future] = batch

    def _receive(self) -> None:
        if self._flying:
            with self._interrupts.allowed():
                done = futures.wait(self._flying, timeout=BEAT, return_when=futures.FIRST_COMPLETED).done
            done |= {future for future in self._flying if future.cancelled()}  # wait() does not return these
            self._keep(done)
            if not done:
                self._store.heartbeat()
                self._check_workers()
        elif not (self._waiting or self._suspects):
            self._look_elsewhere()

    def _look_elsewhere(self) -> None:
        """Check points claimed by other sweeps: collect finished ones, claim abandoned ones."""
        known = self._store.finished()
        had = sum(len(one.places) for one in self._elsewhere)
        self._elsewhere = [left for one in self._elsewhere if (left := one.without(known)).places]
        self.kept += had - sum(len(one.places) for one in self._elsewhere)
        free = [one for one in self._elsewhere if self._store.claim(one.keys)]
        self._elsewhere = [one for one in self._elsewhere if one not in free]
        self._waiting.extend(free)
        if self._elsewhere and not free:
            with self._interrupts.allowed():
                time.sleep(BEAT / 4)

    def _keep(self, done: set[Future[list[Row]]], again: bool = True) -> None:
        """Store the points that came back; send the others again."""
        finished: list[tuple[Group, int, Row]] = []
        raised: list[tuple[Batch, BaseException]] = []
        dead: list[tuple[Batch, BaseException]] = []
        for future in done:
            batch = self._flying.pop(future)
            error = CancelledError("its work was cancelled") if future.cancelled() else future.exception()
            if error is not None:
                (dead if isinstance(error, BrokenExecutor | CancelledError) else raised).append((batch, error))
                continue
            rows = future.result()
            if not self._owned and not _are_rows(rows):
                raise self._broken(TypeError(f"for work it returned {shown(rows)}"))
            finished += [(batch.group, at, row) for at, row in zip(batch.places, rows, strict=False)]
            if len(rows) < len(batch.places):
                self._waiting.appendleft(Batch(batch.group, batch.places[len(rows) :]))
        self._record(finished)
        if again:
            for batch, error in raised:
                self._record(self._blame([batch], error))
            self._record(self._worker_died(dead))

    def _record(self, finished: list[tuple[Group, int, Row]]) -> None:
        if finished:
            self._store.add(finished)
        for _, _, row in finished:
            self._counts[row["status"]] += 1

    def _blame(self, batches: list[Batch], error: BaseException) -> list[tuple[Group, int, Row]]:
        """Record a point that was alone when its worker raised or died; retry several points one by one."""
        if sum(len(batch.places) for batch in batches) == 1:
            return [(batches[0].group, batches[0].places[0], unplanned(error))]
        self._suspects.extend(Batch(batch.group, (at,)) for batch in batches for at in batch.places)
        return []

    def _worker_died(self, dead: list[tuple[Batch, BaseException]]) -> list[tuple[Group, int, Row]]:
        """One of our workers died, and all points in flight were lost."""
        if not dead:
            return []
        error = dead[0][1]
        if not self._owned:
            raise self._broken(error) from error
        batches = [batch for batch, _ in dead] + list(self._flying.values())
        self._flying.clear()
        self._end(wait=False)
        self._executor = self._started()
        if len(batches) == 1 and len(batches[0].places) == 1 and not batches[0].deaths:
            self._suspects.append(replace(batches[0], deaths=1))  # the worker may have been killed from outside
            return []
        return self._blame(batches, error)

    def _check_workers(self) -> None:
        if isinstance(self._executor, Processes):
            try:
                self._executor.check()
            except RuntimeError as error:
                raise self._broken(error) from error

    def _started(self) -> Executor:
        try:
            return self._start()
        except (OSError, RuntimeError) as error:
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> MemschedError:
        said = str(error) or type(error).__name__
        if self._owned:
            told = f"no worker can be started ({said}); end other programs or take fewer jobs"
        else:
            told = f"the executor broke ({said}); give a new one"
        kept = (
            "what it has finished is in its store" if isinstance(self._store, Store) else "with a store it would go on"
        )
        return MemschedError(f"{told}, and run the same sweep again: {kept}")

    def _report(self) -> None:
        now = time.perf_counter()
        if self._say is None or (now - self._spoken < 0.1 and not self._finished):
            return
        self._spoken = now
        said = SweepProgress(points=self._points, kept=self.kept, seconds=now - self._began, **self._counts)
        with self._interrupts.allowed():
            self._say(said)


def _are_rows(found: object) -> bool:
    """Whether an executor of others returned what the work did."""
    return isinstance(found, list) and all(
        isinstance(row, dict) and isinstance(row.get("status"), str) for row in found
    )


def _mixed(batches: Sequence[Batch], most: int) -> Iterator[Batch]:
    """Cut batches into parts of at most `most` points, problem by problem, alternating between planners.

    So quick planners, which mostly hold the GIL, run beside long ones, which release it.
    """
    for _, own in groupby(batches, key=lambda batch: batch.group.problem.key):
        cut = ([Batch(one.group, one.places[at : at + most]) for at in range(0, len(one.places), most)] for one in own)
        yield from (part for turn in zip_longest(*cut) for part in turn if part is not None)
