"""The store: one SQLite file, one row per point. It survives a kill at any moment and serves several sweeps at once."""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any

from memsched.errors import InvalidInputError, StoreError, shown
from memsched.problems.budget import memory_percent
from memsched.problems.problem import Problem, problem_from
from memsched.study.sweep.points import Group, SweptProblem, known_keys
from memsched.study.sweep.rows import MEASURES, Row, fault
from memsched.study.sweep.store_file import (
    PATIENCE,
    POINT,
    as_stored,
    check_content,
    check_header,
    check_point,
    connect_to_read,
    damaged,
    decompressed,
    from_version_1,
    make,
    seal,
)
from memsched.support.documents import Document, write_device
from memsched.support.files import MOST_BYTES, path_of, why

_LEASE = 10.0  # seconds without a heartbeat after which others take over the claims of a sweep
_AT_ONCE = 32  # rows per statement; SQLite allows 999 values
_COLUMNS = (*POINT, "seal")


class Store:
    """An open store, for one thread.

    The file is created if it does not exist; if `read_only`, it must exist, and is not changed. With `retry_failed`,
    points whose planner failed count as not finished. StoreError: the file cannot be opened, is not a store, or has
    another version.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, retry_failed: bool = False) -> None:
        self._read_only = read_only
        self._there = "status <> 'failed'" if retry_failed else "TRUE"
        self.path = path_of(path, "the store")
        self._file = os.path.abspath(self.path)
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._beats = 0
        self._heard: dict[str, tuple[object, float]] = {}  # sweep -> its beat, and when that was first seen
        with self._store_errors("opened"):
            older = (read_only or os.path.exists(self.path)) and check_header(self.path, read_only=read_only)
            if older:
                with closing(connect_to_read(self.path)) as old:
                    self._database = from_version_1(old, self.path)
            elif read_only:
                self._database = connect_to_read(self.path)
            else:
                self._database = sqlite3.connect(self._file, timeout=PATIENCE)
        try:
            with self._store_errors("opened"):
                self._begin(read_only)
        except StoreError:
            self._database.close()
            raise

    def _begin(self, read_only: bool) -> None:
        self._database.isolation_level = None  # transactions are begun explicitly
        self._database.execute("PRAGMA trusted_schema = OFF")
        if not read_only:
            with self._transaction():
                make(self._database)
        check_content(self._database, self.path)
        if not read_only:
            self._write_ahead()
            self._database.execute("PRAGMA synchronous = NORMAL")

    def _write_ahead(self) -> None:
        """Switch to write-ahead logging. SQLite does not wait for others that switch at the same time."""
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > patience:
                    raise
            time.sleep(0.02)

    def close(self) -> None:
        """Release unfinished claims, and close."""
        if self._read_only:
            self._database.close()
            return
        try:
            with self._store_errors("written"), self._transaction():
                self._database.execute("DELETE FROM claims WHERE sweep = ?", (self._name,))
                self._database.execute("DELETE FROM sweeps WHERE name = ?", (self._name,))
        except StoreError:
            pass  # not writable now; others will take over the claims
        self._database.close()

    def add_problem(self, problem: SweptProblem) -> None:
        """Keep a problem, so that its points can be planned again."""
        facts = (problem.key, problem.name, problem.source, float(problem.ideal))
        with self._store_errors("written"), self._transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO problems VALUES (?, ?, ?, ?, ?, ?)",
                (*facts, seal(facts), problem.document),
            )

    def problem(self, key: str) -> tuple[str | None, Document]:
        """The name to load a problem by, if it has one, and its JSON form."""
        with self._store_errors("read"):
            found = self._database.execute(
                "SELECT source, CASE WHEN length(document) <= ? THEN document END FROM problems WHERE key = ?",
                (MOST_BYTES, key),
            ).fetchone()
            try:
                source, packed = found
                document: Document = json.loads(decompressed(packed))
                if key not in known_keys(document, source):
                    raise ValueError("its content has another key")
            except (TypeError, ValueError, AttributeError, RecursionError, zlib.error) as error:
                raise damaged(self.path, f"its problem {key!r:.100} cannot be read ({error})") from error
            return source, document

    def finished(self) -> set[str]:
        """The keys of all finished points, planned or not."""
        with self._store_errors("read"):
            return {key for (key,) in self._database.execute(f"SELECT key FROM points WHERE {self._there}")}

    def claim(self, keys: Sequence[str]) -> set[str]:
        """Claim the points that are neither finished nor claimed by a live sweep, and return their keys."""
        listed = json.dumps(list(keys))
        with self._store_errors("written"), self._transaction():
            self._beat()
            self._database.execute(
                "INSERT OR IGNORE INTO claims SELECT value, ? FROM json_each(?) "
                f"WHERE NOT EXISTS (SELECT 1 FROM points WHERE points.key = value AND {self._there})",
                (self._name, listed),
            )
            mine = self._database.execute(
                "SELECT claims.key FROM json_each(?) JOIN claims ON claims.key = value WHERE sweep = ?",
                (listed, self._name),
            )
            return {key for (key,) in mine.fetchall()}

    def heartbeat(self) -> None:
        """Show that this sweep is alive; call it every few seconds."""
        with self._store_errors("written"), self._transaction():
            self._beat()

    def _beat(self) -> None:
        """Increase our beat, and drop sweeps whose beat has not changed for the lease, by our own clock."""
        self._beats += 1
        self._database.execute("INSERT OR REPLACE INTO sweeps VALUES (?, ?)", (self._name, self._beats))
        now = time.monotonic()
        others = self._database.execute("SELECT name, beats FROM sweeps WHERE name <> ?", (self._name,)).fetchall()
        before, self._heard = self._heard, {}
        for name, beats in others:
            last, since = before.get(name, (None, now))
            self._heard[name] = (beats, since if beats == last else now)
        silent = [(name,) for name, (_, since) in self._heard.items() if now - since >= _LEASE]
        self._database.executemany("DELETE FROM sweeps WHERE name = ?", silent)
        self._database.execute("DELETE FROM claims WHERE sweep NOT IN (SELECT name FROM sweeps)")

    def add(self, points: Sequence[tuple[Group, int, Row]]) -> None:
        """Add finished points: group, index in the group, and figures. Only failures are replaced."""
        finished = time.time()
        values = [_values(group, at, row, finished) for group, at, row in points]
        keys = [group.keys[at] for group, at, _ in points]
        listed = json.dumps(keys)
        with self._store_errors("written"), self._transaction():
            self._database.execute(
                "UPDATE totals SET points = points + (SELECT count(DISTINCT value) FROM json_each(?) "
                "WHERE NOT EXISTS (SELECT 1 FROM points WHERE points.key = value))",
                (listed,),
            )
            for first in range(0, len(values), _AT_ONCE):  # few statements, as each one releases the GIL
                some = values[first : first + _AT_ONCE]
                marks = ", ".join([f"({', '.join('?' * len(_COLUMNS))})"] * len(some))
                self._database.execute(
                    f"INSERT INTO points ({', '.join(_COLUMNS)}) VALUES {marks} ON CONFLICT (key) DO UPDATE SET "
                    f"{', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)} WHERE points.status = 'failed'",
                    list(chain(*some)),
                )
            self._database.execute("DELETE FROM claims WHERE key IN (SELECT value FROM json_each(?))", (listed,))
        self._check_place()

    def _check_place(self) -> None:
        """A file that is removed lives on for whoever has it open."""
        if not os.path.exists(self._file):
            raise StoreError(
                f"'{self.path}' was removed while the sweep wrote to it, and its points are lost; run the sweep again"
            )

    def rows(self, keys: Sequence[str] | None = None) -> list[Row]:
        """The given finished points, in the given order; by default all, by problem, planner, memory and bandwidth."""
        query = f"SELECT {', '.join(f'points.{name}' for name in _COLUMNS)} FROM points"
        if keys is None:
            query += " LEFT JOIN problems ON problem = problems.key"
            query += " ORDER BY problems.name, planner, options, memory, bandwidth, points.key"
        with self._store_errors("read"):
            self._database.execute("BEGIN")
            try:
                problems = self._problems()
                found = [self._row(values, problems) for values in self._database.execute(query)]
            finally:
                self._database.execute("COMMIT")
        if keys is None:
            return found
        by_key = {row["key"]: row for row in found}
        return [by_key[key] for key in keys if key in by_key]

    def _problems(self) -> dict[str, tuple[str, float, Problem]]:
        """Name and ideal time of each problem, and the problem."""
        found = {}
        for *facts, sealed in self._database.execute("SELECT key, name, source, ideal, seal FROM problems"):
            if seal(facts) != sealed:
                raise damaged(self.path, f"its problem {facts[0]!r:.100} is not as it was written")
            _, name, source, ideal = facts
            known = isinstance(name, str) and isinstance(source, str | None)
            if not known or not isinstance(ideal, float) or not 0 <= ideal < math.inf:
                raise damaged(self.path, f"its problem {facts[0]!r:.100} has values where none belong")
            try:
                found[facts[0]] = (name, ideal, problem_from(self.problem(facts[0])[1]))
            except InvalidInputError as error:
                raise damaged(self.path, f"its problem {facts[0]!r:.100} is none ({error})") from error
        return found

    def _row(self, values: tuple[Any, ...], problems: dict[str, tuple[str, float, Problem]]) -> Row:
        check_point(values, self.path)
        row: Row = dict(zip(POINT, values, strict=False))
        row["problem_key"] = row["problem"]
        try:
            row["problem"], row["ideal"], problem = problems[row["problem"]]
            row["memory_percent"] = memory_percent(row["memory"], problem)
            row["options"], row["device"] = dict(_object(row["options"])), dict(_object(row["device"]))
        except KeyError as error:
            raise damaged(self.path, f"the problem of its point {row['key']} is missing") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged(self.path, f"its point {row['key']} cannot be read ({error})") from error
        if row["optimal"] is not None:
            row["optimal"] = bool(row["optimal"])
        wrong = fault(row)
        if wrong is not None:
            key, what = wrong
            raise damaged(self.path, f"{key} of its point {row['key']} is {shown(row[key])}; it must be {what}")
        return row

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction with the lock for writing."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it already
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OSError, OverflowError, UnicodeError, MemoryError) as error:
            told = why(error)  # UnicodeError: SQLite's messages may be damaged, too
            raise StoreError(f"'{self.path}' cannot be {what}: {told}{_remedy(told, self.path)}") from error


def _values(group: Group, at: int, row: Row, finished: float) -> tuple[Any, ...]:
    device = group.devices[at]
    values = (
        *(group.keys[at], group.problem.key, group.planner, device.memory, device.d2h),
        *(json.dumps(group.options, sort_keys=True), row["status"]),
        *map(row.get, MEASURES),
        *(json.dumps(write_device(device)), group.table_slots, group.version, finished),
    )
    kept = as_stored(values)
    return (*kept, seal(kept))


_object = lru_cache(maxsize=1024)(json.loads)  # the same options and devices occur many times


def _remedy(error: str, path: str) -> str:
    """What to do about an error of SQLite."""
    if "full" in error:
        return "; free some space and run the same sweep again: finished points are kept"
    if "not a database" in error or "malformed" in error:
        return "; it is not a store, or it is damaged: give another file"
    if "No such file" in error and os.path.isdir(os.path.dirname(path) or "."):
        return "; it is written by a sweep: sweep(.., store=path)"
    if any(words in error for words in ("unable to open", "No such file", "File name too long")):
        return "; give a file in a folder that exists, with a name of at most 240 characters"
    if "readonly" in error:
        return "; give a file and a folder that can be written"
    if "out of memory" in error or "too big" in error:
        return "; it is damaged, or too large for this machine: give another file"
    if "I/O" in error:
        return "; check the disk and run the same sweep again: finished points are kept"
    if "locked" in error:
        return "; another program holds it: end that, or give another file"
    return ""
