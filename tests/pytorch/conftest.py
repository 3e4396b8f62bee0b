"""Tests of memsched.torch; skipped where torch is not installed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="memsched.torch needs torch, which is not installed")
# The models are small: threads that wait for each other on a busy machine cost more than they bring.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["rotor", "greedy"])
def planner(request: pytest.FixtureRequest) -> str:
    """One that recomputes and one that offloads."""
    return str(request.param)
