"""Compiled steps on CUDA's streams, by a stand-in that finds races."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from memsched.torch.compiled import copies, unit
from memsched.torch.compiled.groups import plans
from memsched.torch.lanes import CudaLanes
from memsched.torch.trial import first_difference, trial_step
from pytorch.fake_cuda import FakeCuda
from pytorch.test_compiled import CASES

CPU = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    fake.install(monkeypatch)
    before = copies.traffic_on(CPU).lanes
    copies.use(CPU, CudaLanes(CPU))
    torch._dynamo.reset()
    yield fake
    copies.use(CPU, before)
    torch._dynamo.reset()
    gc.collect()  # pinned memory is given back to the stand-in, and not to what comes after it


def trained(case: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, steps: int = 3, **more: Any) -> None:
    """Train as planned, on streams that are watched from the second step on, and compare the bits."""
    build, inputs = CASES[case]
    torch.manual_seed(0)
    plain, args = build(), inputs()
    planned = copy.deepcopy(plain)
    compiled = torch.compile(planned, backend="memsched", options={"budget": "5%", "bandwidth": "100MB/s", **more})
    for step in range(steps):
        torch.manual_seed(step)
        expected = trial_step(plain, plain, args, {}, CPU)
        torch.manual_seed(step)
        found = trial_step(planned, compiled, args, {}, CPU)
        assert first_difference(expected, found) is None
        monkeypatch.setattr(unit, "_METERS", [cuda])
    assert plans()[-1].result.timeline.bytes_out > 0


@pytest.mark.parametrize("case", CASES)
def test_copies_of_compiled_steps_have_no_race(case: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(case, cuda, monkeypatch)
    assert cuda.races == []
    assert {name for name, _, _ in cuda.log} == {"compute", "stream 1", "stream 2"}


@pytest.mark.parametrize("broken", ["gone", "arrived"])
def test_a_wait_that_is_missing_is_a_race(broken: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_awaited(traffic: copies.Traffic, value: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
        for one in traffic._hosts.values():
            one.read = None
        return value

    missing: dict[str, Callable[..., Any]] = {
        "gone": lambda traffic, value, host, owned: None,
        "arrived": not_awaited,
    }
    monkeypatch.setattr(copies.Traffic, broken, missing[broken])
    trained("convolutions", cuda, monkeypatch, device="v100")  # times that are not measured: always the same plan
    assert cuda.races
