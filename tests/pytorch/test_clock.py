"""Times of operations on systems whose clock of a thread's CPU time hardly ticks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.torch.compiled import clock


def coarse(fine: Callable[[], float]) -> Callable[[], float]:
    """That goes on every ten seconds."""
    return lambda: 10.0 * (fine() // 10.0)


@pytest.fixture
def no_thread_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time, "thread_time", coarse(time.thread_time))
    clock.threads_are_timed.cache_clear()
    yield
    clock.threads_are_timed.cache_clear()


def test_a_clock_that_ticks_is_told_from_one_that_does_not() -> None:
    assert clock.ticks(time.perf_counter)
    assert not clock.ticks(coarse(time.perf_counter))
    assert not clock.ticks(lambda: 0.0)


@pytest.mark.usefixtures("no_thread_clock")
@pytest.mark.parametrize("profile_steps", [0, 2])
def test_operations_take_time_all_the_same(profile_steps: int) -> None:
    """They would all take none, and any plan would be as fast as any other."""
    model, x = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh()), torch.randn(128, 64)
    run = torch.compile(model, backend="memsched", options={"budget": "100%", "profile_steps": profile_steps})
    for _ in range(profile_steps + 3):
        run(x).square().mean().backward()
        model.zero_grad()
    plan = ms.torch.plans()[-1]
    assert plan.times.endswith("as it trains") == (profile_steps > 0)
    ops = [op for op in plan.result.problem.ops if "mm" in op["name"] or "tanh" in op["name"]]
    assert len(ops) >= 6
    assert all(op["choices"][0]["time"] > 0 for op in ops)
