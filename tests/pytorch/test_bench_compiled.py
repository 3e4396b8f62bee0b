"""The benchmark of compiled steps runs, and every run computes what plain PyTorch does."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_tiny_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.compiled", "--quick", "--networks", "tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "compiled.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    ours = [row for row in rows if row["method"].startswith("ours at")]
    assert ours
    assert not any(row["differs"] for row in rows)
    assert all(int(row["peak"]) <= int(row["budget"]) for row in ours)
    small = {row["method"]: float(row["ratio"]) for row in rows if row["network"] == "4 x 16, batch 8"}
    assert set(small) == {"plain", "Dynamo", "AOTAutograd", "ours"}
    assert "## Goals" in (tmp_path / "compiled.md").read_text(encoding="utf-8")
