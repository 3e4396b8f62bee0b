"""Sweeps on processes, on an executor of one's own and on Dask, and workers that die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children, get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.planners.registry import PLANNERS
from memsched.study.sweep import drive, processes
from memsched.study.sweep.processes import Processes
from memsched.study.sweep.work import Work, run
from sweeps import DEADLY, run_or_die

CHAIN = "resnet18-224-b32"
MEMORY = [600_000_000 + 10_000_000 * step for step in range(20)]
SLOW: dict[str, Any] = {"options": {"pofo": {"labels": "real", "slots": 400}}, "beta": [8e9]}


def makespans(table: ms.Sweep) -> list[float | None]:
    return [row["makespan"] for row in table]


def test_processes_find_what_threads_find() -> None:
    arguments: dict[str, Any] = {"memory": MEMORY[:4], "beta": [8e9], "jobs": 2}
    problems = [CHAIN, ms.profiles.load("vgg16-224-b32")]
    there = ms.sweep(problems, ["greedy", "rotor"], executor="processes", **arguments)
    here = ms.sweep(problems, ["greedy", "rotor"], **arguments)
    assert makespans(there) == makespans(here)
    assert [row["key"] for row in there] == [row["key"] for row in here]


def test_a_plan_that_no_link_changes_is_made_once_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = PLANNERS["rotor"]

    def plan(chain: ms.Chain, *, device: ms.Device, **options: Any) -> ms.Result:
        made.append(device.memory)
        return real.plan(chain, device=device, **options)

    monkeypatch.setitem(PLANNERS, "rotor", replace(real, plan=plan))
    devices = tuple(ms.Device(memory, speed) for memory in (20, 23) for speed in (1.0, 2.0, 4.0))
    chain = ms.Chain([1, 2, 3], [2, 2, 2], [4, 4, 4, 4], [0, 4, 4, 4])
    todo = Work(problem=chain, key="k", planner="rotor", options={}, table_slots=None, devices=devices)
    rows = run(todo, 100.0, threading.Event())
    assert [row["status"] for row in rows] == ["planned"] * 6
    assert made == [20, 23]


def test_an_executor_of_ones_own_is_used_and_left_alone() -> None:
    with ThreadPoolExecutor(2) as mine:
        table = ms.sweep(CHAIN, ["greedy"], memory=MEMORY, beta=[8e9], executor=mine)
        assert table.count("planned") + table.count("infeasible") == len(MEMORY)
        assert mine.submit(int, "3").result() == 3


def test_a_family_made_by_a_function_travels_to_other_processes() -> None:
    family = ms.profiles.analytic("alexnet", 32)
    rows = [
        ms.sweep(family, ["swap_all"], memory=["90%"], beta=[8e9], executor=executor).rows[0]
        for executor in ("threads", "processes")
    ]
    assert rows[0]["makespan"] == rows[1]["makespan"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_the_sweep_goes_on_when_a_process_is_killed() -> None:
    killed: list[int] = []

    def kill(progress: ms.SweepProgress) -> None:
        children = active_children()
        if progress.finished and children and not killed:
            killed.append(children[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    arguments: dict[str, Any] = {"memory": [f"{share}%" for share in range(2, 100, 4)], **SLOW}
    table = ms.sweep("resnet34-224-b32", ["pofo"], executor="processes", jobs=2, progress=kill, **arguments)
    assert killed
    assert table.count("planned") == 25


@pytest.mark.slow
def test_a_point_that_kills_its_worker_is_recorded_and_the_others_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "run", run_or_die)
    table = ms.sweep(CHAIN, ["greedy"], memory=[*MEMORY, DEADLY], beta=[8e9], executor="processes", jobs=2)
    failed = [row for row in table if row["status"] == "failed"]
    assert [row["memory"] for row in failed] == [DEADLY]
    assert failed[0]["error"].startswith("BrokenProcessPool")


def test_a_broken_executor_of_ones_own_is_told_and_the_store_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"memory": [*MEMORY, DEADLY], "beta": [8e9], "store": tmp_path / "a.sqlite"}
    with monkeypatch.context() as patched, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as mine:
        patched.setattr(drive, "run", run_or_die)
        with pytest.raises(ms.MemschedError, match=r"the executor broke .* run the same sweep again"):
            ms.sweep(CHAIN, ["greedy"], executor=mine, jobs=1, **arguments)
    assert ms.sweep(CHAIN, ["greedy"], **arguments).count("failed") == 0


@pytest.mark.slow
def test_the_only_point_is_tried_again_when_somebody_else_kills_its_worker() -> None:
    killed: list[int] = []

    def kill(_: ms.SweepProgress) -> None:
        children = active_children()
        if children and not killed:
            killed.append(children[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    memory = [f"{share}%" for share in (20, 21)]
    table = ms.sweep(
        "densenet121-224-b32", ["pofo"], memory=memory, executor="processes", jobs=1, progress=kill, **SLOW
    )
    assert killed
    assert table.count("planned") == 2


def test_a_worker_that_is_killed_while_the_first_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be taken for a script without a guard."""
    submit, broken = Processes.submit, []

    def once(self: Processes, *work: Any) -> Any:
        if not broken:
            broken.append(True)
            raise BrokenProcessPool("a process was killed")
        return submit(self, *work)

    monkeypatch.setattr(Processes, "submit", once)
    rows = ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[1e9], executor="processes", jobs=1)
    assert broken
    assert [row["status"] for row in rows] == ["planned"]


@pytest.mark.parametrize("when", ["first", "later"])
def test_without_memory_for_the_thread_that_hands_out_work(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep waited for ever: a future of a pool whose thread has died never ends."""
    submit, start = Processes.submit, Queue._start_thread

    def none_left(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    def hand_out(self: Processes, *work: Any) -> Any:
        if when == "first" or work[0] is not int:
            self._call_queue._thread = None
            monkeypatch.setattr(Queue, "_start_thread", none_left)
        return submit(self, *work)

    monkeypatch.setattr(processes, "_GRACE", 0.5)
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    monkeypatch.setattr(Processes, "submit", hand_out)
    with pytest.raises(ms.MemschedError, match=r"no worker can be started .*the thread that hands out work has died"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[1e9], executor="processes", jobs=1)
    assert Queue._start_thread is not start


@pytest.mark.slow
def test_a_worker_that_is_killed_at_the_end_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the lock of the queue with it, and every other run waited for the other worker without end."""
    monkeypatch.setattr(processes, "_GRACE", 1.0)
    killed: list[int] = []

    def kill(said: Any) -> None:
        if said.finished == said.points and not killed:
            killed.extend(child.pid or 0 for child in active_children()[:1])
            os.kill(killed[0], signal.SIGKILL)

    for _ in range(3):
        killed.clear()
        rows = ms.sweep(CHAIN, ["greedy"], memory=MEMORY, beta=[8e9], executor="processes", jobs=2, progress=kill)
        assert killed
        assert len(rows) == len(MEMORY)


def test_an_executor_that_is_shut_down_is_told(tmp_path: Path) -> None:
    mine = ThreadPoolExecutor(1)

    def end(progress: ms.SweepProgress) -> None:
        mine.shutdown(wait=False, cancel_futures=True)

    arguments: dict[str, Any] = {"memory": [f"{share}%" for share in range(10, 90, 2)], **SLOW}
    with pytest.raises(ms.MemschedError, match=r"the executor broke .*: with a store it would go on"):
        ms.sweep("resnet34-224-b32", ["pofo"], executor=mine, jobs=1, progress=end, **arguments)
    with pytest.raises(ms.MemschedError, match="the executor broke"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], executor=mine)
    with pytest.raises(ms.MemschedError, match="what it has finished is in its store"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], executor=mine, store=tmp_path / "a.sqlite")


def test_whatever_an_executor_raises_is_told() -> None:
    """As that of a Dask client that is closed does, with an error of its own."""

    class Closed(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError("the client is closed")

    with Closed(1) as mine, pytest.raises(ms.MemschedError, match=r"the executor broke \(the client is closed\)"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], executor=mine)


@pytest.mark.parametrize("store", [None, "a.sqlite"])
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (5, "submit returned 5, which is no Future"),
        (None, "for work it returned None"),
        ("x", "for work it returned 'x'"),
        ([[1, 2, 3]], r"for work it returned \[\[1, 2, 3\]\]"),
        (CancelledError(), "CancelledError"),
    ],
)
def test_whatever_an_executor_returns_is_told(answer: Any, told: str, store: str | None, tmp_path: Path) -> None:
    class Strange(Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            found: Future[Any] = Future()
            if isinstance(answer, BaseException):
                found.set_exception(answer)
            else:
                found.set_result(answer)
            return answer if answer == 5 else found

    where = None if store is None else tmp_path / store
    with pytest.raises(ms.MemschedError, match=rf"the executor broke \({told}\); give a new one"):
        ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], executor=Strange(), store=where)


@pytest.mark.slow
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    call = "ms.sweep('resnet18-224-b32', ['greedy'], memory=['50%'], executor='processes', store='a.sqlite')"
    script.write_text(f"import memsched as ms\nprint({call})\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("memsched.errors.")]
    assert "if __name__ ==" in told[-1]  # seldom a thread that ends says something after it
    assert ms.sweep("resnet18-224-b32", ["greedy"], memory=["50%"], store=tmp_path / "a.sqlite").count("planned") == 1


@contextmanager
def started(*command: str, says: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program under way that has said something, and what it said."""
    with subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stderr is not None
            for line in program.stderr:
                if found := re.search(says, line):
                    break
            else:
                pytest.fail(f"{command[0]} has ended without {says}")
            yield program, found[0]
        finally:
            program.kill()


@pytest.fixture
def dask() -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """The address of a scheduler, and its two workers."""
    pytest.importorskip("distributed", reason="Dask is not installed (memsched[dask])")
    scheduler = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    with started(*scheduler, says=r"tcp://127\.0\.0\.1:\d+") as (_, address):
        worker = ("distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")
        with started(*worker, says="Registered") as (one, _), started(*worker, says="Registered") as (other, _):
            yield address, [one, other]


def memsched(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "memsched", *arguments]


@pytest.mark.slow
def test_dask_goes_on_when_a_worker_is_killed(dask: tuple[str, list[subprocess.Popen[str]]], tmp_path: Path) -> None:
    address, workers = dask
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'problems = ["resnet34-224-b32"]\nplanners = ["pofo", "greedy"]\nbandwidth = [8e9]\n'
        'memory = {from = "2%", to = "98%", points = 60}\n[options.pofo]\nlabels = "real"\nslots = 400\n'
    )
    store = tmp_path / "a.sqlite"
    sweep = subprocess.Popen(
        memsched("sweep", str(spec), "--store", str(store), "--dask", address), stderr=subprocess.PIPE, text=True
    )
    while sweep.poll() is None and (not store.exists() or not _points(store)):
        pass  # until the first point is there
    assert sweep.poll() is None, sweep.communicate()
    workers[0].kill()
    _, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, errors
    there = ms.read_store(store)
    assert there.count("planned") == 120
    here = ms.sweep("resnet34-224-b32", ["greedy"], memory=[row["memory"] for row in there][:60], beta=[8e9])
    assert makespans(here) == makespans(there)[:60]


def _points(store: Path) -> int:
    try:
        return len(ms.read_store(store))
    except ms.StoreError:
        return 0  # it is being made


@pytest.mark.exhaustive
def test_dask_without_workers_or_without_a_scheduler_is_told(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed (memsched[dask])")
    spec, table = tmp_path / "spec.toml", tmp_path / "a.csv"
    spec.write_text('problems = ["resnet18-224-b32"]\nmemory = ["50%"]\n')
    scheduler = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    with started(*scheduler, says=r"tcp://127\.0\.0\.1:\d+") as (_, address):
        done = subprocess.run(
            memsched("sweep", str(spec), "-o", str(tmp_path / "a.csv"), "--dask", address),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no workers; start some with `dask worker" in done.stderr
    done = subprocess.run(
        memsched("sweep", str(spec), "-o", str(tmp_path / "a.csv"), "--dask", address), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no scheduler answers there" in done.stderr
    assert not table.exists()


def test_workers_that_still_import_are_killed_when_the_sweep_is_stopped() -> None:
    """They do not listen yet: Ctrl-C waited for their imports."""
    pool = Processes(2)
    pool.submit(int)
    workers = list((pool._processes or {}).values())
    pool.stop()
    pool.shutdown()
    assert {worker.exitcode for worker in workers} == {-signal.SIGKILL}
