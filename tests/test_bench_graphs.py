"""The benchmarks of the papers on graphs still run, in their quick modes."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

VERDICTS = ("confirmed", "changed", "refuted", "not comparable")
pytestmark = pytest.mark.slow


def run(script: str, out: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Its rows by part, and its report; pictures are there and not empty."""
    arguments = [sys.executable, "-m", f"bench.papers.{script}", "--quick", "--out", str(out)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (out / f"{script}.md").read_text(encoding="utf-8")
    pictures = list((out / script).glob("*.png"))
    assert pictures
    assert all(f"{script}/{path.name}" in report and path.stat().st_size > 2000 for path in pictures)
    parts = json.loads((out / script / "points.json").read_text(encoding="utf-8"))["parts"]
    rows = {part: [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]] for part, one in parts.items()}
    assert all(rows.values())
    return rows, report


def cells(report: str) -> list[list[str]]:
    """Of the table of claims."""
    lines = next(part for part in report.split("\n\n") if part.startswith("| claim ")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_modnn2018(tmp_path: Path) -> None:
    rows, report = run("modnn2018", tmp_path)
    assert list(rows) == ["memory", "main", "least", "budgets", "gpus", "links", "ablation"]
    assert all(row["least"] <= row["peak"] <= row["everything"] for row in rows["memory"])
    assert all(row["moDNN"] >= row["ideal"] * (1 - 1e-5) for row in rows["budgets"] + rows["links"])
    assert all(row["moDNN, more rounds"] <= row["moDNN"] * (1 + 1e-5) for row in rows["budgets"])
    claims = cells(report)
    assert len(claims) == 13
    assert all(len(row) == 5 and row[3] in VERDICTS for row in claims)


@pytest.mark.exhaustive
def test_pooch2019(tmp_path: Path) -> None:
    rows, report = run("pooch2019", tmp_path)
    assert list(rows) == ["speeds", "crossed", "slower", "searches", "growth"]
    for row in rows["speeds"]:
        order = [row[name] for name in ("bound", "PoocH", "swap-opt", "swap-all", "w/o scheduling")]
        assert all(a <= b * (1 + 1e-5) for a, b in pairwise(order))
        assert sum(row["PoocH classes"]) == row["maps"]
    assert all(row["default"] <= row["swap-opt"] * (1 + 1e-5) for row in rows["searches"])
    claims = cells(report)
    assert len(claims) == 26
    assert all(len(row) == 5 and row[3] in VERDICTS for row in claims)


def test_superneurons2018(tmp_path: Path) -> None:
    rows, report = run("superneurons2018", tmp_path)
    assert list(rows) == ["depths", "widths", "peaks"]
    (depth,) = rows["depths"]
    assert depth["bytes"] <= 12 * 10**9
    plain, planned = (row["found"] for row in rows["widths"])
    assert plain < planned
    assert all(row["planned"] <= row["op"] < row["plain"] for row in rows["peaks"])
    assert all(row[3] in VERDICTS for row in cells(report))
