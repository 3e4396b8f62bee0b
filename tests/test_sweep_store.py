"""The store of a sweep: kills, several sweeps at once, other files, a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memsched as ms
from marks import nightly
from memsched._core import Device
from memsched.study.sweep import store as stores
from memsched.study.sweep.points import group, swept_problem
from memsched.study.sweep.rows import Row
from memsched.study.sweep.store import Store
from memsched.study.sweep.store_file import POINT, as_stored, seal
from sweeps import POINTS, SWEEP

CHAIN = "resnet18-224-b32"


def begin(path: Path, first: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SWEEP, str(path), str(first)], stdout=subprocess.PIPE, text=True)


def finished_by(sweep: subprocess.Popen[str]) -> tuple[int, int]:
    """Points that the store had, and those that this sweep has added, at its end."""
    output, _ = sweep.communicate(timeout=300)
    *_, last, done = output.splitlines()
    assert done == f"done {POINTS}"
    kept, finished = map(int, last.split())
    return kept, finished


def keys(path: Path) -> dict[str, float]:
    """When each point was finished."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT key, finished FROM points"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
@pytest.mark.parametrize("kills", [2, *nightly(12)])
def test_a_kill_at_any_moment_loses_no_finished_point(kills: int, tmp_path: Path) -> None:
    chance = random.Random(1)
    path = tmp_path / "a.sqlite"
    before: dict[str, float] = {}
    for _ in range(kills):
        sweep = begin(path)
        assert sweep.stdout is not None
        said = 0
        for line in sweep.stdout:  # until it has added something
            said = sum(map(int, line.split()))
            if said > len(before):
                break
        time.sleep(chance.uniform(0, 0.1))
        sweep.send_signal(signal.SIGKILL)
        sweep.communicate()
        now = keys(path)
        assert len(now) >= said > len(before)  # what it had told is there
        assert now.items() >= before.items()  # and nothing was planned again
        assert len(ms.read_store(path)) == len(now)
        before = now
    kept, finished = finished_by(begin(path))
    assert (kept, kept + finished) == (len(before), POINTS)
    assert keys(path).items() >= before.items()


@pytest.mark.slow
def test_two_sweeps_share_a_store_and_no_point_is_planned_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    both = [begin(path, 0), begin(path, 17)]
    counts = [finished_by(sweep) for sweep in both]
    assert sum(finished for _, finished in counts) == POINTS
    assert all(finished > 0 for _, finished in counts)
    assert len(keys(path)) == POINTS
    assert finished_by(begin(path)) == (POINTS, 0)


def measured(makespan: float) -> Row:
    """What a plan with this makespan could have."""
    names = ("lower_bound", "gap", "peak_memory", "bytes_out", "bytes_in", "idle", "recompute_time")
    counts = dict.fromkeys((*names, "optimal", "offloaded", "recomputed", "runtime"), 0)
    return {"status": "planned", **counts, "makespan": makespan}


def test_claims_of_a_living_sweep_are_respected_and_those_of_a_dead_one_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: now[0])
    first, second = (Store(tmp_path / "a.sqlite") for _ in range(2))
    assert first.claim(["a", "b"]) == {"a", "b"}
    assert second.claim(["b", "c"]) == {"c"}
    now[0] += 9
    first.heartbeat()
    now[0] += 9
    assert second.claim(["a", "c"]) == {"c"}
    now[0] += 11
    assert second.claim(["a", "b"]) == {"a", "b"}
    second.close()
    assert first.claim(["a", "c"]) == {"a", "c"}
    first.close()


@settings(max_examples=40, deadline=None)
@example([0.0] * 3, [(0, "claim"), (1, "claim"), (0, "long"), (1, "alive"), (0, "alive"), (1, "claim")])
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.lists(st.tuples(st.integers(0, 2), st.sampled_from(
    ["claim", "alive", "wait", "long", "add"])), max_size=60))  # fmt: skip
def test_clocks_of_other_hosts_decide_nothing(skews: list[float], steps: list[tuple[int, str]]) -> None:
    """A sweep that gives signs of life keeps its claims, whatever the clocks say; the point is nobody else's."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        now, who = [0.0], [0]
        patched.setattr(stores.time, "time", lambda: 1e9 + now[0] + skews[who[0]])
        patched.setattr(stores.time, "monotonic", lambda: 1e7 + now[0] + skews[who[0]])
        sweeps = [Store(Path(folder) / "a.sqlite") for _ in skews]
        last = [0.0] * 3  # sign of life
        owner: int | None = None
        for which, what in steps:
            if what in ("wait", "long"):
                now[0] += 2.0 if what == "wait" else 11.0
                continue
            if owner is not None and owner != which and now[0] - last[owner] >= 10.0:
                owner = None  # who looks now may forget it, although its owner goes on later
            who[0], last[which] = which, now[0]
            if what == "claim" and sweeps[which].claim(["point"]):
                assert owner in (None, which)
                owner = which
            else:
                sweeps[which].heartbeat()
        for one in sweeps:
            one.close()


def test_the_claims_of_a_dead_sweep_are_free_when_an_observer_has_waited(tmp_path: Path) -> None:
    now = [0.0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stores.time, "monotonic", lambda: now[0])
        patched.setattr(stores.time, "time", lambda: 1e12)  # of a host from the future, which used to block all
        dead, observer = Store(tmp_path / "a.sqlite"), Store(tmp_path / "a.sqlite")
        assert dead.claim(["a"]) == {"a"}
        patched.setattr(stores.time, "time", lambda: 1e9)
        for now[0] in (5.0, 9.9, 14.9):  # first seen at 5
            assert observer.claim(["a"]) == set()
        now[0] = 15.0
        assert observer.claim(["a"]) == {"a"}
        observer.close()
        dead.close()


def test_a_transaction_is_alone_among_those_that_write_from_its_beginning(tmp_path: Path) -> None:
    """Two that begin by reading could both find a point free."""
    store = Store(tmp_path / "a.sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite", timeout=0, isolation_level=None)) as other:
        with store._transaction():
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            assert other.execute("SELECT count(*) FROM points").fetchone() == (0,)  # readers go on
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    store.close()


def test_a_point_that_is_there_is_neither_claimed_nor_replaced(tmp_path: Path) -> None:
    problem = swept_problem(ms.profiles.load(CHAIN))
    points = group(problem, "greedy", {}, None, [Device(10**9, 8e9), Device(10**8, 8e9)], "1")
    store = Store(tmp_path / "a.sqlite")
    store.add_problem(problem)
    store.add([(points, 0, {**measured(1.0), "lower_bound": 1.0, "gap": 0.0, "optimal": True})])
    store.add([(points, 0, measured(2.0)), (points, 1, {"status": "failed", "error": "x"})])
    assert store.claim(points.keys) == set()
    assert [(row["makespan"], row["optimal"], row["error"]) for row in store.rows(points.keys)] == [
        (1.0, True, None),
        (None, None, "x"),
    ]
    source, document = store.problem(problem.key)
    assert (source, ms.Chain.from_json(document)) == (None, problem.problem)
    store.close()
    again = Store(tmp_path / "a.sqlite", retry_failed=True)
    assert again.finished() == {points.keys[0]}
    assert again.claim(points.keys) == {points.keys[1]}
    again.add([(points, at, measured(3.0)) for at in (0, 1)])
    assert [(row["makespan"], row["error"]) for row in again.rows(points.keys)] == [(1.0, None), (3.0, None)]
    again.close()


def test_stores_of_other_versions_and_other_files_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    newer, other, text = (tmp_path / name for name in ("newer.sqlite", "other.sqlite", "text.sqlite"))
    ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], store=newer)
    with contextlib.closing(sqlite3.connect(newer)) as database:
        database.execute("PRAGMA user_version = 4")
    with contextlib.closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    text.write_text("This is no database at all. " * 100)
    told = {newer: "is a store of version 4", other: "not the store of a sweep", text: "not a database"}
    for path, message in told.items():
        before = path.read_bytes()
        for attempt in (
            lambda path=path: ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=path),
            lambda path=path: ms.read_store(path),
        ):
            with pytest.raises(ms.StoreError, match=message) as error:
                attempt()
            assert "\n" not in str(error.value)
        assert path.read_bytes() == before
    with pytest.raises(ms.StoreError, match="cannot be opened"):
        ms.read_store(tmp_path / "missing.sqlite")
    assert not (tmp_path / "missing.sqlite").exists()
    with pytest.raises(ms.StoreError, match="cannot be opened"):
        ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=tmp_path)


def test_a_store_that_was_never_finished_is_told_and_swept_into(tmp_path: Path) -> None:
    """As a kill leaves it before SQLite has written tables."""
    path = tmp_path / "begun.sqlite"
    path.touch()
    with pytest.raises(ms.StoreError, match="was ended in its first moments, before any point; sweep into it again"):
        ms.read_store(path)
    ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[12e9], store=path)
    assert len(ms.read_store(path)) == 1


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], store=path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE points SET options = '{'")
        database.commit()
    with pytest.raises(ms.StoreError, match="damaged: its point"):
        ms.read_store(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE problems SET document = x'00'")
        database.commit()
    with pytest.raises(ms.StoreError, match="damaged: its problem"):
        ms.read_store(path)
    store = Store(path, read_only=True)
    with pytest.raises(ms.StoreError, match="damaged: its problem"):
        store.problem(swept_problem(ms.profiles.load(CHAIN)).key)
    store.close()


def test_a_store_that_another_program_holds_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PATIENCE", 0.1)
    path = tmp_path / "a.sqlite"
    ms.sweep(CHAIN, ["greedy"], memory=["50%"], beta=[8e9], store=path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(ms.StoreError, match="another program holds it"):
            ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=path)
        assert len(ms.read_store(path)) == 1
    assert len(ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=path)) == 1


def test_a_store_that_is_removed_meanwhile_is_told(tmp_path: Path) -> None:
    """Its file lives on for the sweep, and nobody else can read it."""
    path = tmp_path / "a.sqlite"

    def remove(_: object) -> None:
        path.unlink(missing_ok=True)

    with pytest.raises(ms.StoreError, match=r"was removed while the sweep wrote to it, and its points are lost"):
        ms.sweep(CHAIN, ["greedy", "rotor"], memory=["50%", "60%", "70%"], beta=[8e9], store=path, progress=remove)


def test_two_that_make_a_store_at_once_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    class Racing(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith("PRAGMA journal_mode"):
                tries.append(sql)
                if len(tries) < 3:  # SQLite says so at once, whatever the timeout
                    raise sqlite3.OperationalError("database is locked")
            return super().execute(sql, *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, factory=Racing, **options))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    Store(tmp_path / "a.sqlite").close()
    assert len(tries) == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small tmpfs")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_with_a_sentence_and_a_store_that_opens(small_disk: Path) -> None:
    path = small_disk / "a.sqlite"
    memory = [f"{share / 10}%" for share in range(1000)]
    with pytest.raises(ms.StoreError, match="full; free some space and run the same sweep again") as told:
        ms.sweep(CHAIN, ["greedy"], memory=memory, beta=[8e9], store=path, jobs=1)
    assert "\n" not in str(told.value)
    kept = ms.read_store(path)
    assert 0 < len(kept) < 1000
    before = keys(path)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    table = ms.sweep(CHAIN, ["greedy"], memory=memory, beta=[8e9], store=path)
    assert len(table) == 1000
    assert keys(path).items() >= before.items()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peak_memory", lambda row: row["memory"] + 1),
        ("lower_bound", lambda row: 2 * row["makespan"]),
        ("lower_bound", lambda _: -1.0),
        ("makespan", lambda row: row["lower_bound"] / 2),
        ("optimal", lambda row: not row["optimal"]),
        ("gap", lambda row: row["gap"] + 1.0),
        ("bytes_out", lambda _: -1),
        ("runtime", lambda _: -1.0),
        ("idle", lambda row: 2 * row["makespan"]),
    ],
)
def test_a_forged_point_that_contradicts_itself_is_refused(
    tmp_path: Path, key: str, value: Callable[[dict[str, Any]], Any]
) -> None:
    """With a seal that is right: only the figures beside it tell."""
    path = tmp_path / "sweep.sqlite"
    swept = ms.sweep("resnet18-224-b32", ["greedy"], memory=["50%"], store=path)
    (row,) = ms.read_store(path)
    assert (swept.claimed, ms.read_store(path).claimed) == (False, True)
    assert ms.sweep("resnet18-224-b32", ["greedy"], memory=["50%"], store=path).claimed  # planned before
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        values = list(database.execute(f"SELECT {', '.join(POINT)} FROM points").fetchone())
        values[list(POINT).index(key)] = value(row)
        database.execute(
            f"UPDATE points SET {key} = ?, seal = ?", (values[list(POINT).index(key)], seal(as_stored(values)))
        )
    with pytest.raises(ms.StoreError, match=key):
        ms.read_store(path)
