"""The benchmark of the GPU runs on the CPU, resumes, and takes its points in the right order."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.gpu.points import pending, rounds

ROOT = Path(__file__).parents[2]

NETWORK = [("net", "fp32")]


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--small", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_small_networks_on_the_cpu(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed; the networks are its own")
    pytest.importorskip("matplotlib")
    options = ("--output", str(tmp_path), "--networks", "densenet201:fp32", "--budgets", "1", "--steps", "1")
    bench(*options)
    rows = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    by_label = {row["label"]: row for row in rows}
    assert {row["status"] for row in rows} <= {"ok", "infeasible", "limit"}, rows
    assert set(by_label) == {label for one in rounds(1, ()) for label in one}
    for row in rows:
        if row["method"] in ("plan", "backend") and row["status"] == "ok":
            assert row["peak"] <= row["budget"]
    assert by_label["checkpoint"]["peak"] < by_label["plain"]["peak"]
    report = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| checkpoint per block |" in report
    assert "At equal memory" in report
    assert (tmp_path / "gpu-densenet201-fp32.png").stat().st_size > 10_000
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    assert bench(*options, "--resume").count("\n") == 1
    assert (tmp_path / "rows.jsonl").read_text(encoding="utf-8") == lines


def measured(rows: dict[str, Any], *, fail: str = "") -> list[str]:
    """The labels in the order in which they would be measured."""
    order = []
    while (following := next(pending(NETWORK, rounds(5, (0.5,)), rows), None)) is not None:
        key, point = following
        order.append(point["label"])
        status = "oom" if point["label"] == fail else "ok"
        rows[key] = {**point, "status": status, "peak": 1000, "min_memory": 400, "predicted_peak": 900, "context": 7}
    return order


def test_points_come_in_rounds_and_wait_for_what_they_need() -> None:
    rows: dict[str, Any] = {}
    order = measured(rows)
    assert order[:5] == ["plain", "profile", "checkpoint", "equal checkpoint", "plan 0.4"]
    assert order[7:9] == ["compile 0.5", "equal compile 0.5"]
    assert rows["net fp32 plan 0.4"]["budget"] == 400 + 0.4 * 600
    assert rows["net fp32 equal checkpoint"]["budget"] == 1000
    assert rows["net fp32 plan 0.4"]["context"] == 7


def test_a_rival_that_failed_has_no_equal() -> None:
    order = measured({}, fail="checkpoint")
    assert "checkpoint" in order
    assert "equal checkpoint" not in order


def test_without_a_peak_the_budgets_end_at_the_predicted_one() -> None:
    rows: dict[str, Any] = {}
    measured(rows, fail="plain")
    assert rows["net fp32 plan 0.4"]["budget"] == 400 + 0.4 * 500


def test_without_a_profile_nothing_is_planned() -> None:
    order = measured({}, fail="profile")
    assert [label for label in order if label.startswith(("plan", "equal", "verify"))] == []


def test_fewer_budgets() -> None:
    labels = [label for one in rounds(2, ()) for label in one]
    assert [label for label in labels if label.startswith("plan ")] == ["plan 0.4", "plan 0.03"]
