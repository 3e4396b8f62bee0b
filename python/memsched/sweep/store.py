"""The store: one SQLite file, one row a point. It survives a kill at any moment, and serves several sweeps at once."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from memsched.documents import Document, write_device
from memsched.errors import StoreError
from memsched.sweep.points import Group, SweptProblem
from memsched.sweep.rows import MEASURES, Row

_APPLICATION = 0x6D656D73  # "mems", in the file's header
_VERSION = 1
_ALIVE = 10.0  # seconds without a sign of life after which others take over what a sweep has claimed
_PATIENCE = 60.0  # seconds to wait for another writer
_AT_ONCE = 32  # rows in one statement, which may have 999 values

_COLUMNS = (  # in the order of _values
    *("key", "problem", "planner", "memory", "bandwidth", "options", "status", *MEASURES),
    *("device", "table_slots", "version", "finished"),
)
_SCHEMA = f"""
CREATE TABLE problems (
    key TEXT PRIMARY KEY, name TEXT NOT NULL, source TEXT, ideal REAL NOT NULL, document BLOB NOT NULL
);
CREATE TABLE points (
    key TEXT PRIMARY KEY, problem TEXT NOT NULL REFERENCES problems (key), planner TEXT NOT NULL,
    memory INTEGER NOT NULL, bandwidth REAL NOT NULL, options TEXT NOT NULL, status TEXT NOT NULL,
    {", ".join(f"{name} {kind}" for name, kind in MEASURES.items())},
    device TEXT NOT NULL, table_slots INTEGER, version TEXT NOT NULL, finished REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE sweeps (name TEXT PRIMARY KEY, alive REAL NOT NULL);
CREATE TABLE claims (key TEXT PRIMARY KEY, sweep TEXT NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""


class Store:
    """An open store, for one thread.

    Parameters
    ----------
    path : path or None
        The file, which is made where there is none; None keeps all in memory.
    read_only : bool
        The file must be there, and is not changed.
    retry_failed : bool
        Points whose planner failed count as not finished.

    Raises
    ------
    StoreError
        It cannot be opened, is no store, or is one of another version.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, read_only: bool = False, retry_failed: bool = False
    ) -> None:
        self._read_only = read_only
        self._there = "status <> 'failed'" if retry_failed else "TRUE"
        self.path = "the store in memory" if path is None else os.fspath(path)
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        with self._told("opened"):
            if read_only:
                uri = f"{Path(self.path).absolute().as_uri()}?mode=ro{'&immutable=1' if self._at_rest() else ''}"
                self._database = sqlite3.connect(uri, uri=True, timeout=_PATIENCE)
            else:
                self._database = sqlite3.connect(":memory:" if path is None else self.path, timeout=_PATIENCE)
        try:
            with self._told("opened"):
                self._begin(read_only)
        except StoreError:
            self._database.close()
            raise

    def _begin(self, read_only: bool) -> None:
        self._database.isolation_level = None  # transactions are begun where they are needed
        if not read_only:
            with self._transaction():
                if self._number("PRAGMA user_version") == 0 and not self._number("SELECT count(*) FROM sqlite_master"):
                    for statement in _SCHEMA.split(";")[:-1]:
                        self._database.execute(statement)
        self._check()
        if not read_only:
            self._write_ahead()
            self._database.execute("PRAGMA synchronous = NORMAL")

    def _at_rest(self) -> bool:
        """Whether a store in a folder that cannot be written is whole without what SQLite would lay beside it."""
        beside = Path(f"{self.path}-wal")
        return not os.access(Path(self.path).absolute().parent, os.W_OK) and not beside.exists()

    def _write_ahead(self) -> None:
        """SQLite does not wait by itself for others that do the same at this moment."""
        patience = time.monotonic() + _PATIENCE
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > patience:
                    raise
            time.sleep(0.02)

    def _check(self) -> None:
        if self._number("PRAGMA application_id") != _APPLICATION:
            raise StoreError(f"'{self.path}' is a database, but no store of a sweep; give another file")
        version = self._number("PRAGMA user_version")
        if version != _VERSION:
            raise StoreError(
                f"'{self.path}' is a store of version {version}, and this memsched reads version {_VERSION}; "
                "sweep into a new file, or use the memsched that made it"
            )

    def close(self) -> None:
        """Give up what is claimed and not finished, and close."""
        if self._read_only:
            self._database.close()
            return
        try:
            with self._told("written"), self._transaction():
                self._database.execute("DELETE FROM claims WHERE sweep = ?", (self._name,))
                self._database.execute("DELETE FROM sweeps WHERE name = ?", (self._name,))
        except StoreError:
            pass  # a store that cannot be written now: others take over in time
        self._database.close()

    def add_problem(self, problem: SweptProblem) -> None:
        """Keep a problem, so that its points can be planned again."""
        with self._told("written"), self._transaction():
            self._database.execute(
                "INSERT OR IGNORE INTO problems VALUES (?, ?, ?, ?, ?)",
                (problem.key, problem.name, problem.source, problem.ideal, problem.document),
            )

    def problem(self, key: str) -> tuple[str | None, Document]:
        """The name by which a problem can be loaded, if it has one, and its JSON form."""
        with self._told("read"):
            found = self._database.execute("SELECT source, document FROM problems WHERE key = ?", (key,)).fetchone()
            try:
                return found[0], json.loads(zlib.decompress(found[1]))
            except (TypeError, ValueError, zlib.error) as error:
                raise StoreError(f"'{self.path}' is damaged: its problem {key} cannot be read ({error})") from error

    def finished(self) -> set[str]:
        """The keys of all points that are there, planned or not."""
        with self._told("read"):
            return {key for (key,) in self._database.execute(f"SELECT key FROM points WHERE {self._there}")}

    def claim(self, keys: Sequence[str]) -> set[str]:
        """Those of the points that nobody has finished, nor another living sweep claimed: now they are ours."""
        listed = json.dumps(list(keys))
        with self._told("written"), self._transaction():
            self._sign_of_life()
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

    def alive(self) -> None:
        """Say that this sweep goes on; to be said every few seconds."""
        with self._told("written"), self._transaction():
            self._sign_of_life()

    def _sign_of_life(self) -> None:
        now = time.time()
        self._database.execute("INSERT OR REPLACE INTO sweeps VALUES (?, ?)", (self._name, now))
        self._database.execute("DELETE FROM sweeps WHERE alive < ?", (now - _ALIVE,))
        self._database.execute("DELETE FROM claims WHERE sweep NOT IN (SELECT name FROM sweeps)")

    def add(self, points: Sequence[tuple[Group, int, Row]]) -> None:
        """Finished points: their group, their place in it, and their measures. Only failures are replaced."""
        finished = time.time()
        values = [_values(group, at, row, finished) for group, at, row in points]
        keys = [group.keys[at] for group, at, _ in points]
        with self._told("written"), self._transaction():
            for first in range(0, len(values), _AT_ONCE):  # one statement for many: each lets go of the interpreter
                some = values[first : first + _AT_ONCE]
                marks = ", ".join([f"({', '.join('?' * len(_COLUMNS))})"] * len(some))
                self._database.execute(
                    f"INSERT INTO points ({', '.join(_COLUMNS)}) VALUES {marks} ON CONFLICT (key) DO UPDATE SET "
                    f"{', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)} WHERE points.status = 'failed'",
                    list(chain(*some)),
                )
            self._database.execute(
                "DELETE FROM claims WHERE key IN (SELECT value FROM json_each(?))", (json.dumps(keys),)
            )

    def rows(self, keys: Sequence[str] | None = None) -> list[Row]:
        """The given points that are there, in that order; by default all, by problem, planner, memory and bandwidth."""
        columns = ", ".join(f"points.{name}" for name in _COLUMNS)
        query = f"SELECT {columns}, problems.name, problems.ideal FROM points JOIN problems ON problem = problems.key"
        order = " ORDER BY problems.name, planner, options, memory, bandwidth, points.key"
        with self._told("read"):
            found = [self._row(values) for values in self._database.execute(query + order)]
        if keys is None:
            return found
        by_key = {row["key"]: row for row in found}
        return [by_key[key] for key in keys if key in by_key]

    def _row(self, values: tuple[Any, ...]) -> Row:
        row: Row = dict(zip((*_COLUMNS, "name", "ideal"), values, strict=True))
        if bytes in map(type, values):
            raise StoreError(f"'{self.path}' is damaged: its point {row['key']!r} has bytes where none belong")
        row["problem_key"], row["problem"] = row["problem"], row.pop("name")
        try:
            row["options"], row["device"] = dict(_object(row["options"])), dict(_object(row["device"]))
        except (TypeError, ValueError) as error:
            raise StoreError(f"'{self.path}' is damaged: its point {row['key']} cannot be read ({error})") from error
        if row["optimal"] is not None:
            row["optimal"] = bool(row["optimal"])
        return row

    def _number(self, query: str, *values: object) -> int:
        return int(self._database.execute(query, values).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and alone among those that write."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it already
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:  # its messages may be damaged, too
            raise StoreError(f"'{self.path}' cannot be {what}: {error}{_remedy(str(error))}") from error


def _values(group: Group, at: int, row: Row, finished: float) -> tuple[Any, ...]:
    device = group.devices[at]
    return (
        *(group.keys[at], group.problem.key, group.planner, device.memory, device.d2h),
        *(json.dumps(group.options, sort_keys=True), row["status"]),
        *map(row.get, MEASURES),
        *(json.dumps(write_device(device)), group.table_slots, group.version, finished),
    )


@lru_cache(maxsize=1024)
def _object(text: str) -> Document:
    """The same options and devices come many times."""
    read: Document = json.loads(text)
    return read


def _remedy(error: str) -> str:
    """What to do about an error of SQLite."""
    if "full" in error:
        return "; free some space and run the same sweep again: what it has finished is kept"
    if "not a database" in error or "malformed" in error:
        return "; it is not a store, or it is damaged: give another file"
    if "locked" in error:
        return "; another program holds it: end that, or give another file"
    return ""
