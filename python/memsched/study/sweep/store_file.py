"""The file of a store: its schema, and whether a file has that schema and is intact."""

from __future__ import annotations

import marshal
import math
import operator
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from memsched.errors import StoreError
from memsched.study.sweep.rows import MEASURES, STATUSES
from memsched.support.files import MOST_BYTES, check_regular
from memsched.support.kinds import SQLITE, told_kind

PATIENCE = 60.0  # seconds to wait for another writer

_APPLICATION = 0x6D656D73  # "mems", in the file's header
_VERSION = 3
_MARSHAL = 2  # version of marshal; the form of plain values has not changed since Python 2.5
_HEADER = 100  # bytes

# Column -> its SQLite type, in the order of the table; a question mark allows NULL.
POINT = {
    **{"key": "TEXT", "problem": "TEXT", "planner": "TEXT", "memory": "INTEGER", "bandwidth": "REAL"},
    **{"options": "TEXT", "status": "TEXT"},
    **{name: f"{kind}?" for name, kind in MEASURES.items()},
    **{"device": "TEXT", "table_slots": "INTEGER?", "version": "TEXT", "finished": "REAL"},
}


def _declared(columns: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {kind[:-1]}" if kind[-1] == "?" else f"{name} {kind} NOT NULL" for name, kind in columns.items()
    )


_SCHEMA = f"""
CREATE TABLE problems (
    key TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, source TEXT, ideal REAL NOT NULL, seal INTEGER NOT NULL,
    document BLOB NOT NULL
);
CREATE TABLE points ({_declared(POINT)}, seal INTEGER NOT NULL, PRIMARY KEY (key)) WITHOUT ROWID;
CREATE TABLE sweeps (name TEXT NOT NULL PRIMARY KEY, beats INTEGER NOT NULL);
CREATE TABLE claims (key TEXT NOT NULL PRIMARY KEY, sweep TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE totals (points INTEGER NOT NULL);
INSERT INTO totals VALUES (0);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""

_VERSION_1 = {
    "problems": ("key", "name", "source", "ideal", "document"),
    "points": tuple(name for name in POINT if name != "bound_on"),
    "sweeps": ("name", "alive"),
    "claims": ("key", "sweep"),
}

_PYTHON = {"TEXT": str, "INTEGER": int, "REAL": float}
_REAL = [at for at, (name, kind) in enumerate(POINT.items()) if kind[:4] == "REAL" and name != "bandwidth"]
_STATUS = list(POINT).index("status")
_measured = operator.itemgetter(*_REAL)


def check_header(path: str, *, read_only: bool) -> bool:
    """Refuse a file that is not a store before SQLite opens it and recovers the data of another program.

    Return whether it is a store of version 1, which can be read but not written. OSError: it is not a regular file.
    StoreError: it is another database, or a store of a version that cannot be opened like this.
    """
    check_regular(path)
    with open(path, "rb") as file:
        head = file.read(_HEADER)
    if not head.startswith(SQLITE) and (kind := told_kind(head)) is not None:
        raise StoreError(f"'{path}' is {kind}; a store is an SQLite database that a sweep wrote: give another file")
    if len(head) < _HEADER or not head.startswith(SQLITE):
        return False  # empty, or being created; SQLite itself refuses what is not a database
    version, application = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    if application != _APPLICATION:
        raise StoreError(f"'{path}' is a database, but not the store of a sweep; give another file")
    if version == 1 and not read_only:
        raise StoreError(f"'{path}' is a store of version 1, which can only be read; sweep into a new file")
    if version not in (1, _VERSION):
        raise StoreError(
            f"'{path}' is a store of version {version}, and this memsched reads versions 1 and {_VERSION}; "
            "sweep into a new file, or use the memsched that made it"
        )
    return version == 1


def connect_to_read(path: str) -> sqlite3.Connection:
    """A connection that changes no content and leaves no file behind.

    SQLite puts two files beside a store in write-ahead mode, even if it only reads. Who may write removes them at the
    end; who may not, reads the file alone if nobody has put them there.
    """
    absolute = Path(path).absolute()
    if os.access(absolute, os.W_OK) and os.access(absolute.parent, os.W_OK):
        how = "mode=rw"
    else:
        how = "mode=ro" if Path(f"{absolute}-wal").exists() else "mode=ro&immutable=1"
    database = sqlite3.connect(f"{absolute.as_uri()}?{how}", uri=True, timeout=PATIENCE)
    database.execute("PRAGMA query_only = ON")
    return database


def from_version_1(old: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Convert a store of version 1, whose rows have no seals, to a current store in memory; StoreError if damaged."""
    for kind, name in _schema(old):  # a view, or a column that is computed, may never end
        if kind != "table" or name not in _VERSION_1:
            raise StoreError(f"'{path}' has the {kind} {name!r}, which no store has; give another file")
    for name, columns in _VERSION_1.items():
        found = [column[1] if not column[6] else f"{column[1]} computed" for column in _columns(old, name)]
        if found != list(columns):
            raise StoreError(
                f"'{path}' has a table {name!r} that is not a store's, with the columns {', '.join(found)}; "
                "give another file"
            )
    problem = old.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise damaged(path, str(problem))
    new = sqlite3.connect(":memory:", isolation_level=None)
    make(new)
    for *facts, document in old.execute("SELECT key, name, source, ideal, document FROM problems"):
        new.execute("INSERT INTO problems VALUES (?, ?, ?, ?, ?, ?)", (*facts, seal(facts), document))
    marks = ", ".join("?" * (len(POINT) + 1))
    known = ", ".join("NULL" if name == "bound_on" else name for name in POINT)
    for values in old.execute(f"SELECT {known} FROM points"):
        try:
            kept = as_stored(values)
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"its point {values[0]!r:.100} has values where none belong") from error
        new.execute(f"INSERT INTO points VALUES ({marks})", (*kept, seal(kept)))
    new.execute("UPDATE totals SET points = (SELECT count(*) FROM points)")
    return new


def make(database: sqlite3.Connection) -> None:
    """Create the tables in an empty database; inside a transaction."""
    (version,), (tables,) = (
        database.execute(query).fetchone() for query in ("PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if version == 0 and tables == 0:
        for statement in _SCHEMA.split(";")[:-1]:
            database.execute(statement)


def check_content(database: sqlite3.Connection, path: str) -> None:
    """Refuse a database with other tables than a store, or a damaged one: StoreError."""
    wanted, found = _expected_schema(), _schema(database)
    if not found:
        raise StoreError(
            f"'{path}' is empty: such is a store whose first sweep was ended in its first moments, before any point; "
            "sweep into it again, or give another file"
        )
    for kind, name in found:
        if (kind, name) not in wanted:
            raise StoreError(f"'{path}' has the {kind} {name!r}, which no store has; give another file")
    for kind, name in wanted:
        if (kind, name) not in found:
            raise StoreError(f"'{path}' lacks the {kind} {name!r} of a store; give another file")
    for (_, name), declared in wanted.items():
        if found[_, name] != declared:
            listed = ", ".join(column[1] for column in _columns(database, name))
            raise StoreError(
                f"'{path}' has a table {name!r} that is not a store's, with the columns {listed}; give another file"
            )
    problem = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise damaged(path, str(problem))
    counts = database.execute("SELECT points, (SELECT count(*) FROM points) FROM totals").fetchall()
    if len(counts) != 1 or counts[0][0] != counts[0][1]:  # a page of the file was lost or overwritten
        raise damaged(path, "the number of its points is not the one that was written")


def damaged(path: str, what: str) -> StoreError:
    """The error for a store that is not as it was written."""
    return StoreError(f"'{path}' is damaged: {what}; use an earlier copy, or sweep into a new file")


def _columns(database: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return database.execute(f"PRAGMA table_xinfo({table})").fetchall()


def _schema(database: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """The declared tables and indexes, without SQLite's own."""
    query = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite@_%' ESCAPE '@'"
    return {(kind, name): sql for kind, name, sql in database.execute(query)}


@lru_cache(maxsize=1)
def _expected_schema() -> dict[tuple[str, str], str]:
    with closing(sqlite3.connect(":memory:")) as database:
        make(database)
        return _schema(database)


def seal(values: Iterable[Any]) -> int:
    """A checksum of a row, to detect flipped bits; SQLite has none."""
    return zlib.crc32(marshal.dumps(tuple(values), _MARSHAL))


def as_stored(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values of a point as SQLite returns them."""
    return tuple([one if one is None or made is str else made(one) for made, one in zip(_MADE, values, strict=True)])


def _real(value: float) -> float | None:
    return None if value != value else float(value)


def check_point(values: Sequence[Any], path: str) -> None:
    """Refuse a point that no sweep wrote, as its values do not match its seal: StoreError."""
    if seal(values[:-1]) != values[-1]:
        raise damaged(path, f"its point {values[0]!r:.100} is not as it was written")
    status = values[_STATUS]
    measures = _measured(values)
    if not _types_fit(status, tuple(map(type, values))) or math.inf in measures or -math.inf in measures:
        raise damaged(path, f"its point {values[0]!r:.100} has values where none belong")


_MADE: list[Callable[[Any], Any]] = [
    _real if kind[:4] == "REAL" else _PYTHON[kind.rstrip("?")] for kind in POINT.values()
]


@lru_cache(maxsize=256)
def _types_fit(status: object, types: tuple[type, ...]) -> bool:
    """Whether a point with this status may have values of these types."""
    needed = STATUSES.get(status) if isinstance(status, str) else None
    if needed is None:
        return False
    for (name, kind), found in zip(POINT.items(), types, strict=False):
        missing = found is type(None) and kind[-1] == "?" and name not in needed
        if not missing and found is not _PYTHON[kind.rstrip("?")]:
            return False
    return True


def decompressed(document: bytes) -> bytes:
    """Decompress a document of at most the size of an input file; ValueError or zlib.error if it is not whole."""
    reader = zlib.decompressobj()
    text = reader.decompress(document, MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it decompresses to more than {MOST_BYTES} bytes, the limit")
    if not reader.eof:
        raise ValueError("its end is missing")
    return text
