"""Sweeps that are interrupted, killed, or lose their workers: what is finished is kept, and nothing is left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from marks import nightly
from memsched import _core
from memsched._core import Device
from memsched.study.sweep import drive, work
from memsched.study.sweep.drive import Drive
from memsched.study.sweep.memory import Memory
from memsched.study.sweep.points import Group, group, swept_problem
from memsched.study.sweep.store import Store
from memsched.support.interrupt import Interrupts

CHAIN = "resnet18-224-b32"
MEMORY = [600_000_000 + 10_000_000 * step for step in range(20)]


def points(count: int) -> Group:
    devices = [Device(2_000_000_000 + 10_000_000 * step, 8e9) for step in range(count)]
    return group(swept_problem(ms.profiles.load(CHAIN)), "greedy", {}, None, devices, "1")


class Calls(Executor):
    """Does what it is told when it is told; `before` is asked first, with the number of the call."""

    def __init__(self, before: Callable[[int], None]) -> None:
        self.calls, self._before = 0, before

    def submit(self, what: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            self._before(self.calls)
            future.set_result(what(*arguments, **named))
        except BrokenExecutor as error:
            future.set_exception(error)
        return future


def test_points_that_are_finished_at_an_interrupt_are_kept(tmp_path: Path) -> None:
    """Also those of which the sweep has not heard yet."""

    def third(call: int) -> None:
        if call == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ms.sweep(CHAIN, ["greedy"], memory=MEMORY, beta=[8e9], store=tmp_path / "a", executor=Calls(third), jobs=2)
    kept = ms.read_store(tmp_path / "a")
    assert len(kept) == 2 * (len(MEMORY) // 8)


def test_a_worker_that_is_stopped_hands_over_what_it_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """All points of its batch used to be lost with the one under way."""
    stop = threading.Event()
    plan = work.planning

    def planning(todo: work.Work) -> Callable[[Device], Any]:
        plan_on, left = plan(todo), iter([False, False, True])

        def third(device: Device) -> Any:
            if next(left):
                stop.set()
                _core.hear()
            return plan_on(device)

        return third

    monkeypatch.setattr(work, "planning", planning)
    five = points(5)
    todo = work.Work(problem=CHAIN, key="k", planner="vdnn", options={}, table_slots=None, devices=five.devices)
    assert [row["status"] for row in work.run(todo, 100.0, stop)] == ["planned", "planned"]
    assert work.run(todo, 100.0, stop) == []


def test_an_interrupt_that_is_lost_is_told_again() -> None:
    """CPython drops what a callback of a weak reference or of the collector raises; later ones were dropped, too."""
    reached = []

    def work_on() -> None:
        with Interrupts() as interrupts:
            with interrupts.allowed(), contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            reached.append("the next beat")
            with interrupts.allowed():
                reached.append("work")

    with pytest.raises(KeyboardInterrupt):
        work_on()
    assert reached == ["the next beat"]


def cpu_after_an_interrupt(planner: str) -> float:
    """CPU seconds, of both threads together, from Ctrl-C in a sweep to its end."""
    size = [10 + 7 * k % 90 for k in range(3_001)]
    chain = ms.Chain([1.0] * 3_000, [2.0] * 3_000, size, size, [2 * one for one in size[1:]])
    came: list[float] = []

    def interrupt() -> None:
        came.append(time.process_time())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    timer = threading.Timer(0.5, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ms.sweep([chain], [planner], memory=["5%", "20%", "40%"] * 20, beta=[float(k) for k in range(1, 400)], jobs=2)
    timer.join()
    return time.process_time() - came[0]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # CPython drops an interrupt in a callback
@pytest.mark.parametrize("planner", ["rotor", "tflms", "vdnn", "autoswap", "dynprog"])
def test_an_interrupt_stops_the_threads_of_a_sweep_where_they_are(planner: str) -> None:
    """They used to end the points at hand first: 14 s of tflms on 3,000 stages, 1 s of dynprog."""
    assert any(cpu_after_an_interrupt(planner) < 0.4 for _ in range(3))  # another process may slow down one or two


@pytest.mark.parametrize(("deaths", "status"), [(0, "planned"), (1, "planned"), (2, "failed")])
def test_one_death_of_its_worker_does_not_blame_a_point_and_two_do(deaths: int, status: str) -> None:
    pools: list[Calls] = []
    died = [0]

    def die(_: int) -> None:
        if died[0] < deaths:
            died[0] += 1
            raise BrokenExecutor("a worker died")

    def start() -> Executor:
        pools.append(Calls(die))
        return pools[-1]

    one = points(1)
    kept = Memory()
    Drive([one], kept, start, 1, None, True, Interrupts()).run()
    assert [row["status"] for row in kept.rows(one.keys)] == [status]
    assert len(pools) == deaths + 1


def test_a_shared_table_has_the_slots_that_its_rows_tell() -> None:
    from memsched._core import RematTable
    from memsched.planners.registry import PLANNERS

    chain = ms.profiles.load(CHAIN)
    with_table = PLANNERS["rotor"].with_table
    assert with_table is not None
    work._tables.clear()
    for slots in (10, 30):
        table = ms.sweep(chain, ["rotor"], memory=[f"{share}%" for share in range(5, 100, 9)], slots_of_tables=slots)
        found = {row["memory"]: row["makespan"] for row in table}

        def direct(slots: int, memories: list[int]) -> list[float | None]:
            remat = RematTable(chain, ms.peak_memory(chain) - chain.resident, slots, 1)
            made: list[float | None] = []
            for memory in memories:
                try:
                    device = Device(memory, 12.2e9)
                    made.append(with_table(chain, device=device, table=remat).makespan)  # type: ignore[misc]
                except ms.InfeasibleError:
                    made.append(None)
            return made

        assert [row["table_slots"] for row in table] == [slots] * len(table)
        assert list(found.values()) == direct(slots, list(found))
        assert list(found.values()) != direct(slots // 2, list(found))


# SIGINT.


@pytest.fixture
def heard() -> Any:
    """Signals that came through to a handler that does not raise."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_until_it_is_allowed(heard: list[int]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert heard == []
        with interrupts.allowed():
            assert heard == [signal.SIGINT]
        with interrupts.allowed():  # one signal is told once
            pass
        assert heard == [signal.SIGINT]
        with interrupts.allowed():
            signal.raise_signal(signal.SIGINT)
            assert heard == [signal.SIGINT] * 2
    assert signal.getsignal(signal.SIGINT) == handler


def test_an_interrupt_that_was_never_allowed_comes_at_the_end(heard: list[int]) -> None:
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGINT]


def test_after_the_first_interrupt_others_are_dropped_until_the_end() -> None:
    ended = []

    def work_on() -> None:
        with Interrupts() as interrupts:
            try:
                with interrupts.allowed():
                    signal.raise_signal(signal.SIGINT)
            finally:
                for _ in range(3):
                    signal.raise_signal(signal.SIGINT)
                with interrupts.allowed():  # as if another sweep loop were under way
                    signal.raise_signal(signal.SIGINT)
                ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        work_on()
    assert ended
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_and_programs_that_ignore_interrupts_are_left_alone() -> None:
    def elsewhere() -> None:
        with Interrupts() as interrupts, interrupts.allowed():
            assert signal.getsignal(signal.SIGINT) == signal.default_int_handler

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_the_middle_of_storing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to end the transaction, and the points that were in it were dropped."""
    add = Store.add

    def interrupted(store: Store, finished: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        add(store, finished)

    monkeypatch.setattr(drive.Store, "add", interrupted)
    nothing = Calls(lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        ms.sweep(CHAIN, ["greedy"], memory=MEMORY, beta=[8e9], store=tmp_path / "a.sqlite", executor=nothing, jobs=2)
    assert len(ms.read_store(tmp_path / "a.sqlite")) > 0
    assert len(ms.read_store(tmp_path / "a.sqlite")) >= 2 * nothing.calls  # all that came back


SCRIPT = """
import sys
import memsched as ms

def say(progress):
    print(progress.finished, flush=True)

if __name__ == "__main__":
    ms.sweep(["resnet50-224-b32"], ["pofo"], memory=[f"{share}%" for share in range(2, 100)], beta=[6e9, 12e9], jobs=2,
             options={"pofo": {"labels": "real", "slots": 300}}, store=sys.argv[1], executor=sys.argv[2], progress=say)
"""


def started(tmp_path: Path, executor: str) -> subprocess.Popen[str]:
    """A sweep in a group of its own that has finished some points."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "a.sqlite"), executor]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert begun.stdout is not None
    for line in begun.stdout:
        if int(line) > 2:
            break
    return begun


TOML = """
problems = ["resnet50-224-b32"]
planners = ["pofo"]
memory = {from = "2%", to = "99%", points = 98}
bandwidth = ["6GB/s", "12GB/s"]
[options.pofo]
labels = "real"
slots = 300
"""


def commanded(tmp_path: Path, executor: str) -> subprocess.Popen[str]:
    """The same on the command line."""
    (tmp_path / "spec.toml").write_text(TOML)
    command = [sys.executable, "-m", "memsched", "sweep", "spec.toml", "--store", "a.sqlite", "-j", "2"]
    command += ["--processes"] if executor == "processes" else []
    begun = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    patience = time.monotonic() + 60
    while begun.poll() is None and time.monotonic() < patience:
        with contextlib.suppress(ms.StoreError):
            if len(ms.read_store(tmp_path / "a.sqlite")) > 2:
                break
        time.sleep(0.02)
    return begun


def left(session: int) -> list[str]:
    """The processes of a session that are alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(status.parent.name)
    return found


LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("gap", [0.0, 0.05, *nightly(0.01, 0.03, 0.2)])
def test_a_second_interrupt_neither_hangs_nor_aborts(executor: str, gap: float, tmp_path: Path) -> None:
    begun = started(tmp_path, executor)
    for _ in range(3):
        begun.send_signal(signal.SIGINT)
        time.sleep(gap)
    _, errors = begun.communicate(timeout=60)
    assert begun.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors  # the last word, unless a signal hits the interpreter while it writes it
    ours, *at_exit = errors.split("Exception ignored in")
    assert ours.count("Traceback") <= 2
    assert not any("memsched/study" in one for one in at_exit)  # later signals hit the interpreter's own exit
    assert "Process Spawn" not in errors  # no worker has written a traceback
    assert len(ms.read_store(tmp_path / "a.sqlite")) > 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.sqlite", "script.py"]
    assert _soon_gone(begun.pid)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("gap", [0.02, 0.2, *nightly(0.01, 0.03, 0.05, 0.08, 0.12, 0.3, 0.4, 0.5)])
def test_two_interrupts_of_the_command_end_it_with_its_status(executor: str, gap: float, tmp_path: Path) -> None:
    begun = commanded(tmp_path, executor)
    for _ in range(2):
        os.killpg(begun.pid, signal.SIGINT)  # as a terminal does
        time.sleep(gap)
    _, errors = begun.communicate(timeout=60)
    assert begun.returncode == 130, errors
    assert errors == "interrupted; finished points are in 'a.sqlite': run the same command to continue\n"
    assert len(ms.read_store(tmp_path / "a.sqlite")) > 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.sqlite", "spec.toml"]
    assert _soon_gone(begun.pid)


EARLY = """
import sys
from memsched import cli
from memsched.cli import sweep

def interrupted(*_, **__):
    exec("raise KeyboardInterrupt")

sweep.run_sweep = interrupted
sys.argv = ["memsched", "sweep", "spec.toml", "--store", "a.sqlite"]
cli.main()
"""


def test_an_interrupt_while_a_dataclass_is_made_ends_with_the_status_too(tmp_path: Path) -> None:
    """CPython ended by the signal, since an interrupt had left a call of exec."""
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "spec.toml").write_text(TOML)
    ended = subprocess.run([sys.executable, "-m", "early"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.startswith("interrupted; ")


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("to", ["parent", "all"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_sweep(to: str, number: signal.Signals, tmp_path: Path) -> None:
    begun = started(tmp_path, "processes")
    (os.kill if to == "parent" else os.killpg)(begun.pid, number)
    begun.communicate(timeout=60)
    assert _soon_gone(begun.pid)
    assert len(ms.read_store(tmp_path / "a.sqlite")) > 2


def _soon_gone(session: int) -> bool:
    """Whether all of its processes end; the tracker of resources does so a moment after the others."""
    patience = time.monotonic() + 30
    while left(session) and time.monotonic() < patience:
        time.sleep(0.05)
    return not left(session)


@pytest.mark.parametrize(
    "module", ["multiprocessing.reduction", "concurrent.futures.thread", "memsched.study.sweep.store"]
)
def test_an_interrupt_while_a_sweep_imports_leaves_nothing_imported_by_half(module: str) -> None:
    """All later sweeps of the process ended in "module 'multiprocessing' has no attribute 'process'"."""
    script = f"""
import os, signal, sys
import memsched as ms

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

def swept():
    return len(ms.sweep({CHAIN!r}, ["greedy"], memory=["50%"], beta=["12GB/s"]))

sys.meta_path.insert(0, Interrupt())
try:
    swept()
except KeyboardInterrupt:
    print("interrupted", swept())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("interrupted 1\n", ""), done.stderr
