"""The examples run as they stand, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_plan.py"

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are not here")


def run(*options: str) -> str:
    """What the example prints; it must succeed, and warn of nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_training_is_the_same_where_operations_are_recomputed(tmp_path: Path) -> None:
    found = run("--steps", "2", "--plot", str(tmp_path / "curves.png"))
    assert "the losses are the same, bit for bit" in found
    assert "the peak is within the budget" in found
    assert "what is recomputed\n  nothing" not in found
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
def test_training_is_the_same_where_tensors_are_offloaded() -> None:
    found = run("--steps", "2", "--bandwidth", "12GB/s")
    assert "the losses are the same, bit for bit" in found
    assert "0 B in 0 tensors" not in found
