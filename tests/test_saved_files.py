"""Files that version 0.1.0 wrote still load, and say the same."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import memsched as ms

SAVED = Path(__file__).parent / "saved" / "0.1.0"
EXPECTED: dict[str, Any] = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
POINTS = EXPECTED.pop("sweep")


def test_problems_and_devices() -> None:
    chain = ms.Chain.from_json(SAVED / "chain.json")
    assert ms.Graph.from_json(SAVED / "graph.json") == ms.to_graph(chain)
    device = ms.Device.from_json(SAVED / "device.json")
    assert (device.memory, device.d2h, device.h2d, device.latency) == (44, 2.0, 3.0, 0.25)


@pytest.mark.parametrize("name", EXPECTED)
def test_results_and_plans(name: str) -> None:
    result = ms.Result.from_json(SAVED / f"{name}.json")
    figures = dict(EXPECTED[name])
    assert figures.pop("lower_bound") <= result.lower_bound * (1 + 1e-12)  # since then some have become larger
    assert {key: getattr(result, key) for key in figures} == figures
    assert ms.Schedule.from_json(SAVED / f"{name}.plan.json") == result.schedule
    assert ms.validate(result).makespan == pytest.approx(result.makespan)


def test_placements() -> None:
    placement = ms.Placement.from_json(SAVED / "placement.json")
    assert ms.validate_placement(placement.buffers, placement.offsets) == placement.height == 11
    assert [buffer.size for buffer in ms.read_buffers(SAVED / "placement.csv")] == [3, 4, 3]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    shutil.copy(SAVED / "sweep.sqlite", tmp_path)
    return tmp_path / "sweep.sqlite"


def test_a_store_is_read_and_its_points_are_planned_again(store: Path) -> None:
    before = store.read_bytes()
    rows = {row["key"]: row for row in ms.read_store(store)}
    assert len(rows) == len(POINTS)
    for point in POINTS:
        assert {key: rows[point["key"]][key] for key in point} == point
        if point["status"] == "planned":
            assert ms.plan_again(store, point["key"]).makespan == point["makespan"]
    assert store.read_bytes() == before
    assert [path.name for path in store.parent.iterdir()] == [store.name]


def test_an_old_store_is_not_added_to(store: Path) -> None:
    before = store.read_bytes()
    with pytest.raises(ms.StoreError, match="a store of version 1, which can only be read; sweep into a new file"):
        ms.sweep("resnet18-224-b32", ["greedy"], memory=["50%"], store=store)
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("DROP TABLE claims; CREATE VIEW claims AS SELECT name AS key, name AS sweep FROM sweeps", "the view 'claims'"),
        ("CREATE TABLE others(x)", "the table 'others'"),
        ("DROP TABLE claims; CREATE TABLE claims(key TEXT, sweep TEXT AS (hex(zeroblob(9))))", "sweep computed"),
    ],
)
def test_an_old_store_with_what_no_store_has_is_refused(store: Path, change: str, named: str) -> None:
    """A view in place of the points never ended, and Ctrl-C did not end it."""
    with closing(sqlite3.connect(store)) as database:
        database.executescript(change)
    with pytest.raises(ms.StoreError, match=named):
        ms.read_store(store)


def test_a_damaged_old_store_is_refused_or_read(store: Path) -> None:
    content = store.read_bytes()
    dice = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(dice.choice((1, 8))):
            damaged[dice.randrange(100, len(damaged))] = dice.randrange(256)
        store.write_bytes(damaged)
        try:
            ms.read_store(store)
        except ms.StoreError:
            refused += 1
    assert refused > 0


def test_a_byte_order_mark_is_no_part_of_a_document(tmp_path: Path) -> None:
    chain = ms.Chain([1], [1], [4, 4], [0, 4])
    chain.save(tmp_path / "c.json")
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "c.json").read_bytes())
    assert ms.Chain.load(path) == chain


def test_a_plan_for_an_executor_that_is_gone_says_what_to_do() -> None:
    with pytest.raises(ms.InvalidInputError, match=r"an executor that left with version 0\.1\.0; plan the model again"):
        ms.Result.load(SAVED / "torch_plan.json")
