"""Steps of graphs on the lanes of CUDA, over a stand-in for torch.cuda that finds races between streams."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
import torch

import memsched as ms
from memsched.torch.cuda_lanes import CudaLanes
from memsched.torch.graph_step.transfers import Transfers
from pytorch.fake_cuda import FakeCuda
from pytorch.graph_step_models import Captured, captured, fresh, plain_step, schedules
from pytorch.steps import Noting, differences
from pytorch.test_cuda_lanes import _NoOrder, _NoWait, _WrongStream, answers

CPU = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


@functools.lru_cache(maxsize=8)
def moving(c: Captured) -> list[tuple[str, ms.Schedule]]:
    """Plans in which something is offloaded and comes back."""
    found = schedules(c, ("swap_all", "pooch", "superneurons", "vdnn_sync"), (0.1,))
    return [(name, plan) for name, plan in found if any("prefetch" in step for step in plan.steps)]


def step_on(cuda: FakeCuda, c: Captured, schedule: ms.Schedule, lanes: CudaLanes) -> Any:
    """Two steps, so that the second meets the host memory of the first; the outcome of the second."""
    runner = c.runner(schedule, lanes)
    with cuda:
        fresh(lambda: runner.step(*c.args), c.model)
        found = fresh(lambda: runner.step(*c.args), c.model)
        gc.collect()
    return found


@pytest.mark.parametrize(
    "name", ["residual", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "tied_weights"))]
)
def test_planned_steps_have_no_race(cuda: FakeCuda, name: str) -> None:
    c = captured(name)
    want = plain_step(c)
    assert moving(c)
    for seed, (label, schedule) in enumerate(moving(c)):
        cuda.reached = answers(seed % 3)
        assert differences(want, step_on(cuda, c, schedule, CudaLanes(CPU))) == [], label
        assert cuda.races == [], label
    assert {stream for stream, what, _ in cuda.log if what == "copy_"} >= {"stream 1", "stream 2"}


def broken_off(cuda: FakeCuda, where: int) -> None:
    """A step that ends with an error."""
    c = captured("residual")
    runner = c.runner(moving(c)[0][1], CudaLanes(CPU))

    def stop(step: int, kind: str) -> None:
        if step == where:
            raise KeyError("enough")

    def step() -> Any:
        runner.observe = lambda: Noting(stop)
        with pytest.raises(KeyError, match="enough"):
            runner.step(*c.args)
        gc.collect()
        return torch.zeros(())

    with cuda:
        fresh(step, c.model)


@pytest.mark.parametrize("where", [5, 60])
def test_steps_that_end_early_have_no_race(cuda: FakeCuda, where: int) -> None:
    broken_off(cuda, where)
    assert cuda.races == []


def test_a_step_that_does_not_clean_up_races(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(transfers: Transfers) -> None:
        for slot in transfers.slots.values():
            slot.storage = None
        transfers._leaving.clear()

    monkeypatch.setattr(Transfers, "close", drop)
    for where in (60, 100):
        broken_off(cuda, where)
    assert any("given back" in race for race in cuda.races)


@pytest.mark.parametrize(
    "broken", [_NoOrder, *(pytest.param(lanes, marks=pytest.mark.slow) for lanes in (_NoWait, _WrongStream))]
)
def test_lanes_that_are_broken_race(cuda: FakeCuda, broken: type[CudaLanes]) -> None:
    c = captured("residual")
    for _, schedule in moving(c)[:1]:
        step_on(cuda, c, schedule, broken(CPU))
    assert cuda.races
