"""Stores that are damaged, foreign or hostile: what is read is what was written, or the store is refused."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest

import memsched as ms
from memsched.study.sweep import store_file
from memsched.study.sweep.points import content_key
from memsched.study.sweep.rows import Row
from memsched.study.sweep.store import Store
from memsched.support.files import MOST_BYTES

CHAIN = "resnet18-224-b32"


def make(path: Path) -> list[Row]:
    """A store with points that are planned, infeasible and of two problems."""
    chain = ms.Chain([1, 2], [2, 3], [4, 6, 5], [0, 6, 5], name="own")
    ms.sweep([CHAIN], ["greedy", "rotor"], memory=[1, "30%", "80%"], beta=[8e9, float("inf")], store=path)
    ms.sweep(chain, ["greedy"], memory=["0%", "100%"], beta=[2.0], store=path)
    return ms.read_store(path).rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Row]]:
    path = tmp_path_factory.mktemp("whole") / "a.sqlite"
    rows = make(path)
    assert os.listdir(path.parent) == ["a.sqlite"]
    return path.read_bytes(), rows


def refused(path: Path, *words: str) -> None:
    """By those that read and those that write, and nothing is changed or left behind."""
    before, folder = path.read_bytes(), sorted(os.listdir(path.parent))
    for attempt in (
        lambda: ms.read_store(path),
        lambda: ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=path),
        lambda: ms.plan_again(path, "x"),
    ):
        with pytest.raises(ms.StoreError) as told:
            attempt()
        assert path.name in str(told.value)
        assert all(word in str(told.value) for word in words), told.value
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == folder


def outcome(path: Path) -> list[Row] | None:
    """What is read; None for an error of ours."""
    try:
        return ms.read_store(path).rows
    except ms.StoreError:
        return None


def flipped(whole: tuple[bytes, list[Row]], path: Path, chance: random.Random, flips: int) -> None:
    content, rows = whole
    damaged = bytearray(content)
    for _ in range(flips):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)
    found = outcome(path)
    assert found is None or found == rows


def test_a_bit_that_has_turned_is_told_or_changes_nothing(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    content, rows = whole
    chance = random.Random(5)
    for page in range(0, len(content), 4096):
        for _ in range(12):
            damaged = bytearray(content)
            damaged[page + chance.randrange(4096)] ^= 1 << chance.randrange(8)
            (tmp_path / "a.sqlite").write_bytes(damaged)
            found = outcome(tmp_path / "a.sqlite")
            assert found is None or found == rows


@pytest.mark.slow
def test_many_bits_that_have_turned(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    chance = random.Random(6)
    for _ in range(3000):
        flipped(whole, tmp_path / "a.sqlite", chance, chance.choice((1, 1, 1, 2, 5, 50)))


def test_a_row_that_its_page_no_longer_counts_is_told(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    """SQLite reads such a page without complaint, and without the row."""
    content, path = whole[0], tmp_path / "a.sqlite"
    tried = 0
    for page in range(4096, len(content), 4096):
        cells = int.from_bytes(content[page + 3 : page + 5], "big")
        if content[page] in (10, 13) and cells > 0:  # a leaf
            path.write_bytes(content[: page + 3] + (cells - 1).to_bytes(2, "big") + content[page + 5 :])
            assert outcome(path) is None
            tried += 1
    assert tried > 2


def test_pages_that_stand_in_each_others_place_are_told(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    """Those of an empty table of the same kind hid all points."""
    content, rows = whole
    pages = range(0, len(content), 4096)
    for one in pages:
        for other in pages:
            damaged = bytearray(content)
            damaged[one : one + 4096] = content[other : other + 4096]
            (tmp_path / "a.sqlite").write_bytes(damaged)  # a page that was written to the wrong place
            assert outcome(tmp_path / "a.sqlite") in (None, rows)
            damaged[other : other + 4096] = content[one : one + 4096]
            (tmp_path / "a.sqlite").write_bytes(damaged)  # two that were swapped
            assert outcome(tmp_path / "a.sqlite") in (None, rows)


def test_a_store_that_was_cut_short_is_told(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    content, rows = whole
    for length in (*range(0, len(content), 1024), 1, 15, 16, 17, 99, 100, 101, len(content) - 1):
        (tmp_path / "a.sqlite").write_bytes(content[:length])
        assert outcome(tmp_path / "a.sqlite") in (None, rows)


SCHEMAS = {
    "a table more": "CREATE TABLE more (a)",
    "a view more": "CREATE VIEW more AS SELECT * FROM points",
    "a trigger": "CREATE TRIGGER more AFTER INSERT ON points BEGIN DELETE FROM claims; END",
    "an index": "CREATE INDEX more ON points (memory)",
    "a table less": "DROP TABLE claims",
    "a column more": "ALTER TABLE points ADD COLUMN more TEXT",
    "a column less": "ALTER TABLE points DROP COLUMN gap",
    "a column with another name": "ALTER TABLE points RENAME COLUMN makespan TO time",
    "swapped tables": "ALTER TABLE sweeps RENAME TO x; ALTER TABLE claims RENAME TO sweeps;"
    "ALTER TABLE x RENAME TO claims",
    "a view in the place of a table": "ALTER TABLE points RENAME TO x; CREATE VIEW points AS SELECT * FROM x",
    "another kind of table": "DROP TABLE sweeps;"
    "CREATE TABLE sweeps (name TEXT NOT NULL PRIMARY KEY, beats TEXT NOT NULL)",
    "another program's": "PRAGMA application_id = 5",
    "no program's": "PRAGMA application_id = 0",
    "an older version": "PRAGMA user_version = 1",
    "a newer version": "PRAGMA user_version = 4",
}


def change(path: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)


@pytest.mark.parametrize("what", SCHEMAS)
def test_a_store_with_another_schema_is_refused(what: str, whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    change(path, SCHEMAS[what])
    refused(path, "store")


def test_statistics_that_sqlite_keeps_are_no_harm(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    change(path, "ANALYZE")
    assert ms.read_store(path).rows == whole[1]


def test_a_seal_is_the_same_on_every_machine() -> None:
    """Stores travel, and outlive the Python that wrote them."""
    assert store_file.seal(("a", "".join(["b", "é"]), 1, 2**40, -1.5, float("inf"), None)) == 3800426994


VALUES = ["NULL", "'x'", "x'00ff'", "-1", "1e300", "9e999", "''", "'{'", f"'{'[' * 2000}'", "CAST(x'ff' AS TEXT)", "7"]


@pytest.mark.parametrize("column", [*store_file.POINT, "seal"])
def test_a_value_that_nobody_wrote_is_told(column: str, whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    for value in VALUES:
        path.write_bytes(whole[0])
        with contextlib.suppress(sqlite3.Error):  # which refuses some by itself
            change(path, f"PRAGMA ignore_check_constraints = ON; UPDATE OR IGNORE points SET {column} = {value}")
        assert outcome(path) in (None, whole[1])


@pytest.mark.parametrize("column", store_file.POINT)
def test_a_value_that_no_sweep_writes_is_told_also_under_its_seal(
    column: str, whole: tuple[bytes, list[Row]], tmp_path: Path
) -> None:
    """A store may be made by somebody who knows how."""
    path = tmp_path / "a.sqlite"
    at = list(store_file.POINT).index(column)
    listed = ", ".join(store_file.POINT)
    for wrong in (None, 7, -1.5, "x", "{" * 5000, b"\0", float("inf")):
        path.write_bytes(whole[0])
        with contextlib.closing(sqlite3.connect(path)) as database:
            values = list(database.execute(f"SELECT {listed} FROM points").fetchone())
            key, values[at] = values[0], wrong
            with contextlib.suppress(sqlite3.Error):
                kept = database.execute(
                    f"UPDATE OR IGNORE points SET {column} = ? WHERE key = ? RETURNING {listed}", (wrong, key)
                ).fetchall()
                for one in kept:
                    database.execute("UPDATE points SET seal = ? WHERE key = ?", (store_file.seal(one), one[0]))
            database.commit()
        rows = outcome(path)
        for row in rows or ():
            json.dumps(row)
            assert row["status"] in ("planned", "infeasible", "failed")
            assert isinstance(row["memory"], int)
            assert isinstance(row["options"], dict)


@pytest.mark.parametrize(
    ("column", "wrong"), [("name", b"x"), ("source", b"x"), ("ideal", "x"), ("ideal", -1.0), ("ideal", float("inf"))]
)
def test_a_problem_that_no_sweep_writes_is_told_also_under_its_seal(
    column: str, wrong: Any, whole: tuple[bytes, list[Row]], tmp_path: Path
) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE problems SET {column} = ?", (wrong,))
        for facts in database.execute("SELECT key, name, source, ideal FROM problems").fetchall():
            database.execute("UPDATE problems SET seal = ? WHERE key = ?", (store_file.seal(facts), facts[0]))
        database.commit()
    with pytest.raises(ms.StoreError, match="has values where none belong") as told:
        ms.read_store(path)
    assert "a.sqlite" in str(told.value)


def forge(path: Path, planner: str, changes: dict[str, Any]) -> str:
    """Change a planned point and seal it, as anybody can; return its key."""
    listed = ", ".join(store_file.POINT)
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = f"SELECT {listed} FROM points WHERE planner = ? AND status = 'planned'"
        row = dict(zip(store_file.POINT, database.execute(query, (planner,)).fetchone(), strict=True)) | changes
        values = (*row.values(), store_file.seal(row.values()))
        marks = ", ".join("?" * len(values))
        database.execute(f"UPDATE points SET ({listed}, seal) = ({marks}) WHERE key = ?", (*values, row["key"]))
        database.commit()
    return str(row["key"])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("device", '{"latency": [1]}'),
        ("device", '{"duplex": {}}'),
        ("device", '{"h2d": -1}'),
        ("device", '{"memory": 5}'),
        ("device", '{"colour": 5}'),
        ("options", f'{{"chunk": 1{"0" * 400}}}'),
        ("options", '{"chunk": [1]}'),
        ("options", '{"chunk": NaN}'),
        ("table_slots", 0),
        ("table_slots", -5),
        ("table_slots", 10**9),
    ],
)
def test_devices_options_and_slots_that_no_sweep_writes_are_told(
    column: str, value: Any, whole: tuple[bytes, list[Row]], tmp_path: Path
) -> None:
    """Reports ended in raw errors, and no slots at all ended the process."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    key = forge(path, "rotor", {column: value})
    for attempt in (lambda: ms.read_store(path), lambda: ms.plan_again(path, key)):
        with pytest.raises(ms.StoreError, match=f"{column} of its point {key} is .*; it must be "):
            attempt()


@pytest.mark.parametrize(
    ("planner", "changes", "told"),
    [
        ("rotor", {"options": '{"a": 1}'}, "rotor has no option 'a'"),
        ("rotor", {"options": '{"M": 5}'}, "rotor has no option 'M'"),
        ("rotor", {"options": '{"threads": 1}'}, "a sweep sets the option 'threads' itself"),
        ("greedy", {"options": '{"progress": 1}'}, "a sweep sets the option 'progress' itself"),
        ("greedy", {"table_slots": 200}, "greedy .* no shared table"),
        ("greedy", {"planner": "auto", "table_slots": 200}, "auto .* no shared table"),
        ("greedy", {"planner": "nobody"}, "planner is 'nobody'"),
    ],
)
def test_points_that_no_sweep_has_are_not_planned_again(
    planner: str, changes: dict[str, Any], told: str, whole: tuple[bytes, list[Row]], tmp_path: Path
) -> None:
    """Other versions may have them, so their figures are read."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    key = forge(path, planner, changes)
    rows = ms.read_store(path).rows
    assert len(rows) == len(whole[1])
    ms.write_sweep_report(rows, tmp_path / "a.html")
    with pytest.raises(ms.StoreError, match=f"cannot be planned again: .*{told}"):
        ms.plan_again(path, key)


@pytest.mark.parametrize("by_path", [True, False])
def test_a_store_leads_to_no_other_problem(by_path: bool, tmp_path: Path) -> None:
    """It made memsched open any file, and plan that."""
    path, other = tmp_path / "a.sqlite", ms.profiles.analytic("alexnet", 4)
    (tmp_path / "other.json").write_text(json.dumps(other.to_json([1, 2, 4])))
    source = str(tmp_path / "other.json") if by_path else "analytic:alexnet:4"
    [row] = ms.sweep("analytic:alexnet:2", ["swap_all"], memory=["100%"], beta=[6e9], store=path)
    assert ms.plan_again(path, row["key"]).makespan == row["makespan"]
    with contextlib.closing(sqlite3.connect(path)) as database:
        name, ideal, packed = database.execute("SELECT name, ideal, document FROM problems").fetchone()
        facts = (content_key(json.loads(zlib.decompress(packed)), source), name, source, ideal)
        database.execute(
            "UPDATE problems SET (key, name, source, ideal, seal) = (?, ?, ?, ?, ?)", (*facts, store_file.seal(facts))
        )
        database.commit()
    key = forge(path, "swap_all", {"problem": facts[0]})
    assert len(ms.read_store(path)) == 1
    with pytest.raises(ms.StoreError, match="is not the name of its problem"):
        ms.plan_again(path, key)


def documents(path: Path, packed: bytes) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE problems SET document = ?", (packed,))
        database.commit()


def bomb(most: int) -> bytes:
    """A thousandth of the cap, and more than the cap when it is unpacked."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(b" " * (1 << 20)) for _ in range((most >> 20) + 1)) + packer.flush()


HOSTILE: dict[str, Any] = {
    "nothing": (b"", "cannot be read"),
    "no zip": (b"hello", "cannot be read"),
    "half of a zip": (zlib.compress(b"{}" * 1000)[:-5], "its end is missing"),
    "no JSON": (zlib.compress(b"{"), "cannot be read"),
    "deep JSON": (zlib.compress(b"[" * 100_000), "cannot be read"),
    "no object": (zlib.compress(b"[1]"), "cannot be read"),
    "another problem": (zlib.compress(b'{"format": "memsched-chain/1"}'), "its content has another key"),
    "no text": (zlib.compress(b"\xff\xfe\xfd"), "cannot be read"),
}


@pytest.mark.parametrize("most", [1 << 20, pytest.param(MOST_BYTES, marks=pytest.mark.slow)])
def test_a_bomb_is_not_unpacked(
    most: int, whole: tuple[bytes, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    documents(path, bomb(most))
    monkeypatch.setattr(store_file, "MOST_BYTES", most)
    with pytest.raises(ms.StoreError, match=f"it decompresses to more than {most} bytes"):
        ms.plan_again(path, whole[1][0]["key"])


@pytest.mark.parametrize("what", HOSTILE)
def test_problems_that_cannot_be_unpacked_are_told(what: str, whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    packed, told = HOSTILE[what]
    documents(path, packed)
    with pytest.raises(ms.StoreError, match=f"damaged: its problem .* cannot be read .*{told}|{told}"):
        ms.plan_again(path, whole[1][0]["key"])


def test_a_point_without_its_problem_is_told(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    """It used to be left out in silence."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    change(path, "DELETE FROM problems WHERE name = 'own'")
    with pytest.raises(ms.StoreError, match=r"damaged: the problem of its point .* is missing"):
        ms.read_store(path)


def test_reading_leaves_no_file_behind(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    for _ in range(3):
        ms.read_store(path)
        assert os.listdir(tmp_path) == ["a.sqlite"]
    assert path.read_bytes() == whole[0]
    writer = Store(path)
    assert ms.read_store(path).rows == whole[1]
    writer.close()
    ms.read_store(path)
    assert os.listdir(tmp_path) == ["a.sqlite"]


def test_what_a_killed_sweep_left_beside_its_store_is_read(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path, copy = tmp_path / "a.sqlite", tmp_path / "copy"
    path.write_bytes(whole[0])
    writer = Store(path)
    writer.claim(["a"])
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))  # as a kill leaves it
    writer.close()
    assert (copy / "a.sqlite-wal").stat().st_size > 0
    assert ms.read_store(copy / "a.sqlite").rows == whole[1]
    assert os.listdir(copy) == ["a.sqlite"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_is_read(whole: tuple[bytes, list[Row]], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(whole[0])
    path.chmod(0o444)
    assert ms.read_store(path).rows == whole[1]
    assert os.listdir(tmp_path) == ["a.sqlite"]


@pytest.mark.skipif(os.name != "posix", reason="there are no such files here")
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "missing folder", "long name"])
def test_what_can_be_no_store_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    match kind:
        case "device":
            path = Path("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "missing folder":
            path = tmp_path / "none" / "a.sqlite"
        case "long name":
            path = tmp_path / ("x" * 256)
    for attempt in (
        lambda: ms.read_store(path),
        lambda: ms.sweep(CHAIN, ["greedy"], memory=["60%"], beta=[8e9], store=path),
    ):
        with pytest.raises(ms.StoreError, match="cannot be opened") as told:
            attempt()
        assert "; give a" in str(told.value)
