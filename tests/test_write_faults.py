"""What cannot be written, and workers that cannot start: one sentence that names the file, and the old file whole."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from multiprocessing import popen_spawn_posix
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.arena.placement import write_placement
from memsched.show.plots.addresses import plot_addresses
from memsched.show.plots.classes import plot_classes
from memsched.show.plots.frontier import plot_frontier
from memsched.show.plots.plan import plot
from memsched.show.trace import trace
from memsched.study.sweep import store as stores
from memsched.study.sweep.processes import Processes
from memsched.support.documents import write_document

pytestmark = pytest.mark.skipif(os.name != "posix", reason="limits and devices of POSIX")

CHAIN = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], saved=[9, 5], name="toy")
RESULT = ms.greedy(CHAIN, 24, 2.0)
PLACED = ms.place(RESULT)


def report(path: str) -> None:
    pytest.importorskip("jinja2", reason="reports need jinja2")
    importlib.import_module("memsched.show.report").write_report([RESULT], path, compare=False)


def sweep_report(path: str) -> None:
    pytest.importorskip("jinja2", reason="reports need jinja2")
    importlib.import_module("memsched.show.report").write_sweep_report(table().rows, path)


def parquet(path: str) -> None:
    pytest.importorskip("pyarrow", reason="memsched[sweep] is not installed")
    table().to_parquet(path)


def csv(path: str) -> None:
    pytest.importorskip("pandas", reason="memsched[sweep] is not installed")
    table().to_csv(path)


def swept(**options: Any) -> ms.Sweep:
    return ms.sweep(["resnet18-224-b32"], ["greedy"], **{"memory": ["50%", "90%"], "beta": [8e9], "jobs": 1, **options})


@cache
def table() -> ms.Sweep:
    """One, for each has runtimes of its own, and so another size as a file."""
    return swept()


WRITERS: dict[str, Callable[[str], object]] = {
    "plan.json": lambda path: write_document(path, RESULT.schedule.to_json()),
    "result.json": lambda path: write_document(path, RESULT.to_json()),
    "trace.json": lambda path: write_document(path, trace(RESULT)),
    "placement.json": lambda path: write_document(path, PLACED.to_json()),
    "placement.csv": lambda path: write_placement(path, PLACED),
    "plot.png": lambda path: plot(RESULT, path),
    "addresses.svg": lambda path: plot_addresses(PLACED, path),
    "classes.pdf": lambda path: plot_classes(RESULT, path),
    "frontier.png": lambda path: plot_frontier(ms.frontier(CHAIN, 2.0, points=2, planner="greedy"), path),
    "sweep.png": lambda path: table().plot(path),
    "report.html": report,
    "sweep.html": sweep_report,
    "sweep.csv": csv,
    "sweep.parquet": parquet,
}
EACH = pytest.mark.parametrize("name", WRITERS)


@contextlib.contextmanager
def files_of(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: a write stops half way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(name: str, path: Path) -> None:
    with pytest.raises(ms.InvalidInputError) as told:
        WRITERS[name](str(path))
    assert str(told.value).startswith(f"'{path}' cannot be written: ")
    assert "\n" not in str(told.value)


@pytest.mark.slow
@EACH
def test_a_write_that_stops_half_way_leaves_the_old_file_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](str(path))
    size, before = path.stat().st_size, b"what was there"
    path.write_bytes(before)
    for most in (0, size - 1):
        with files_of(most):
            refused(name, path)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == [name]
    path.unlink()
    with files_of(size // 2):
        refused(name, path)
    assert not os.listdir(tmp_path)
    WRITERS[name](str(path))
    assert os.listdir(tmp_path) == [name]


@pytest.mark.slow
@EACH
def test_where_no_file_can_be_is_told(name: str, tmp_path: Path) -> None:
    file, folder, full = tmp_path / "file", tmp_path / f"folder-{name}", tmp_path / f"full-{name}"
    file.write_bytes(b"before")
    folder.mkdir()
    full.symlink_to("/dev/full")
    for path in (tmp_path / "missing" / name, file / name, folder, full):
        refused(name, path)
    assert sorted(os.listdir(tmp_path)) == sorted(["file", folder.name, full.name])
    assert file.read_bytes() == b"before"
    assert not os.listdir(folder)


@pytest.mark.parametrize("size", [0, 4096, 32_768, 45_000])
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_store_that_cannot_grow_is_told_and_goes_on_later(
    size: int, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_LEASE", 0.0)  # what was claimed could not be given back
    path = tmp_path / "a.sqlite"
    swept(store=path)
    memory = [f"{share}%" for share in range(0, 50)]
    with files_of(size), pytest.raises(ms.StoreError, match=r"cannot be (opened|written): ") as told:
        swept(store=path, memory=memory, executor=executor)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    assert len(ms.read_store(path)) >= 2
    assert len(swept(store=path, memory=memory)) == len(memory)


_SMALL = "plan resnet18-224-b32 --planner greedy"
COMMANDS = ["profiles", "profiles --json", "--help", "--version", "plan --help", "compare resnet18-224-b32 -m 50%"]


def memsched(command: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "memsched", *command.split()]
    return subprocess.run(call, text=True, check=False, **streams)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_full_is_told_in_one_line(command: str) -> None:
    """--help and --version used to end in a traceback."""
    with open("/dev/full", "w") as full:
        done = memsched(command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "error: the standard output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_what_cannot_be_said_does_not_change_the_exit_status() -> None:
    with open("/dev/full", "w") as full:
        done = memsched(f"{_SMALL} -m 1", stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 3
    for command, status in (("plan --json", 2), ("--bogus --json", 2), (f"{_SMALL} -m 1 --json", 3)):
        with open("/dev/full", "w") as full:
            done = memsched(command, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == status, done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
    for closed in (1, 2):
        done = memsched(
            "profiles", stderr=subprocess.PIPE if closed == 1 else None, preexec_fn=partial(os.close, closed)
        )
        assert (done.returncode, done.stderr or "") == (0, "")


def test_workers_that_cannot_start_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the system says when it has no thread, process or pipe left."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_process(*_: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def no_pipe(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    path = tmp_path / "a.sqlite"
    swept(store=path)
    for place, name, fault, executor in (
        (threading.Thread, "start", no_thread, "threads"),
        (popen_spawn_posix.Popen, "_launch", no_process, "processes"),
        (Processes, "__init__", no_pipe, "processes"),
    ):
        for jobs in (1, 2):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, fault)
                with pytest.raises(
                    ms.MemschedError, match=r"no worker can be started .* run the same sweep again"
                ) as told:
                    swept(store=path, memory=["60%", "70%"], executor=executor, jobs=jobs)
            assert "\n" not in str(told.value)
            assert len(ms.read_store(path)) == 2
    with ThreadPoolExecutor(1) as mine, monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(ms.MemschedError, match=r"the executor broke .* run the same sweep again"):
            swept(memory=["60%"], executor=mine)
    assert len(swept(store=path, memory=["60%", "70%"])) == 2


STARVED = """
import os, resource, threading
import memsched as ms
from memsched.planners.entry import takes
from memsched.planners.registry import PLANNERS
chain = ms.profiles.load("densenet121-224-b32")
memory = (ms.min_memory(chain) + ms.peak_memory(chain)) // 2
result = ms.greedy(chain, memory, 12e9)
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # root has as many threads as it likes
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    threading.Thread(target=print).start()
    raise SystemExit("threads start all the same")
except RuntimeError:
    pass
assert ms.simulate(chain, result.schedule, result.device) == result.timeline
assert ms.bounds(chain, memory, 12e9, time_limit=0.1).best <= result.makespan
for name in ("offload", "pofo", "rotor"):
    plan = PLANNERS[name].plan
    ms.validate(plan(chain, memory, 12e9, **takes(plan, {"threads": 4, "time_limit": 0.1})))
assert ms.order(result.graph, time_limit=0.1).peak_memory > 0
assert ms.place(result, time_limit=0.1).height > 0
assert ms.frontier(chain, 12e9, planner="rotor", points=2).results
print("done")
"""


@pytest.mark.slow
def test_without_a_thread_to_start_the_core_works_on_alone() -> None:
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    if "threads start all the same" in done.stderr:
        pytest.skip("threads cannot be forbidden here")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
