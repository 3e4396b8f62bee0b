"""The benchmarks still run: their quick modes, and the speed suite once through."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import common

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


def run(*arguments: str) -> None:
    """A module of bench/ in its own process, from the root of the repository."""
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("tick", [1e-9, 1e-4, 1e-2])
def test_what_is_over_before_the_clock_goes_on_is_timed(monkeypatch: pytest.MonkeyPatch, tick: float) -> None:
    """On some systems the CPU time of a thread goes on a hundred times a second."""
    now = [0.0]
    monkeypatch.setattr(common.time, "thread_time", lambda: tick * (now[0] // tick))
    monkeypatch.setattr(common, "_tick", lambda: tick)

    def work() -> str:
        now[0] += 3e-4
        return "done"

    seconds, result = common.timed(work)
    assert result == "done"
    assert seconds == pytest.approx(3e-4, rel=0.1)
    assert common.best_of([work], seconds=0.0, least=3) == [pytest.approx(3e-4, rel=0.1)]


def test_goals(tmp_path: Path) -> None:
    run("bench.goals", "--quick", "--out", str(tmp_path))
    found = json.loads((tmp_path / "goals.json").read_text(encoding="utf-8"))
    assert {part for part, table in found["parts"].items() if table["rows"]} == {
        "slots",
        "exact",
        "offload",
        "simulate",
        "growth",
    }
    assert "| goal | measured |" in (tmp_path / "goals.md").read_text(encoding="utf-8")


def test_goals_resume(tmp_path: Path) -> None:
    arguments = ["bench.goals", "--parts", "exact", "--profiles", "resnet18-224-b32", "--limits", "50"]
    for folder in ("first", "second"):
        run(*arguments, "--cache", str(tmp_path / "cache.jsonl"), "--out", str(tmp_path / folder))
    first, second = (
        json.loads((tmp_path / folder / "goals.json").read_text(encoding="utf-8")) for folder in ("first", "second")
    )
    assert first["parts"] == second["parts"]


def parts_of(page: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each part that a script has kept."""
    parts = json.loads((out / page / "points.json").read_text(encoding="utf-8"))["parts"]
    return {part: [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]] for part, one in parts.items()}


def test_europar2020(tmp_path: Path) -> None:
    run("bench.papers.europar2020", "--quick", "--out", str(tmp_path))
    parts = parts_of("europar2020", tmp_path)
    assert [len(parts[part]) for part in ("points", "ties")] == [6, 6]
    for row, tie in zip(parts["points"], parts["ties"], strict=True):
        bound = max(row[name] for name in ("compute", "transfer", "fractional")) * (1 - 1e-5)
        assert row["offload"] >= bound
        assert tie["paper"] >= row["dynprog"] * (1 - 1e-5)
        assert (tie["hash"] is not None) == (row["percent"] == 50)
        assert tie["hash"] is None or tie["hash"] >= bound
    report = (tmp_path / "europar2020.md").read_text(encoding="utf-8")
    pictures = {path.name for path in (tmp_path / "europar2020").glob("*.png")}
    assert pictures
    assert all(f"europar2020/{name}" in report for name in pictures)


@pytest.mark.exhaustive
def test_remat(tmp_path: Path) -> None:
    run("bench.remat", "--quick", "--out", str(tmp_path))
    found = json.loads((tmp_path / "remat.json").read_text(encoding="utf-8"))["parts"]
    rows = {
        part: [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]] for part, table in found.items()
    }
    assert list(rows) == ["rotor", "loaded", "memory", "exact", "real", "threads", "growth", "auto"]
    assert all(rows.values())
    assert all(row["same"] for row in rows["threads"])
    assert all(row["auto"] >= row["bound"] - 1e-4 for row in rows["auto"])
    assert "| goal | measured |" in (tmp_path / "remat.md").read_text(encoding="utf-8")


def test_pofo2021(tmp_path: Path) -> None:
    run("bench.papers.pofo2021", "--quick", "--out", str(tmp_path))
    rows = parts_of("pofo2021", tmp_path)["points"]
    assert len(rows) == 6
    for row in rows:
        for name in ("rotor", "pofo", "pofo, whole", "offload"):
            assert float(row[name]) >= float(row["bound"]) * (1 - 1e-5)
    report = (tmp_path / "pofo2021.md").read_text(encoding="utf-8")
    pictures = {path.name for path in (tmp_path / "pofo2021").glob("*.png")}
    assert pictures
    assert all(f"pofo2021/{name}" in report for name in pictures)


@pytest.mark.exhaustive
def test_sweep(tmp_path: Path) -> None:
    run("bench.sweep", "--quick", "--out", str(tmp_path))
    figures = json.loads((tmp_path / "sweep.json").read_text(encoding="utf-8"))
    assert set(figures["rates"]) == {"greedy", "dynprog", "rotor", "all three"}
    assert all(rate > 0 for ways in figures["rates"].values() for rate in ways.values())
    assert "| goal | measured | verdict |" in (tmp_path / "sweep.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_speed_suite() -> None:
    run("pytest", "bench/speed", "--benchmark-disable", "-q", "-p", "no:cacheprovider", "-k", "not hash")


def test_auto(tmp_path: Path) -> None:
    run("bench.auto", "--quick", "--out", str(tmp_path))
    with (tmp_path / "auto.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert all(float(row["gap"]) <= float(row["overhead"]) + 1e-9 for row in rows)
    assert "| memory | overhead" in (tmp_path / "auto.md").read_text(encoding="utf-8")
