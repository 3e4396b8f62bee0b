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


def trained(case: str, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, steps: int = 3) -> None:
    """Train as planned, on streams that are watched from the second step on, and compare the bits."""
    build, inputs = CASES[case]
    torch.manual_seed(0)
    plain, args = build(), inputs()
    planned = copy.deepcopy(plain)
    compiled = torch.compile(planned, backend="memsched", options={"budget": "5%", "bandwidth": "100MB/s"})
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
    missing: dict[str, Callable[..., Any]] = {
        "gone": lambda traffic, value, host, owned: None,
        "arrived": lambda traffic, value, host: (traffic._reads.clear(), value)[1],
    }
    monkeypatch.setattr(copies.Traffic, broken, missing[broken])
    trained("convolutions", cuda, monkeypatch)
    assert cuda.races


calls_until_it_fails: list[int] = []


@torch.library.custom_op("memsched_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    """The same values; fails when its number is up."""
    if calls_until_it_fails:
        calls_until_it_fails[0] -= 1
        if calls_until_it_fails[0] == 0:
            raise KeyError("enough")
    return x.clone()


@fragile.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


fragile.register_autograd(lambda ctx, gradient: fragile(gradient))


class Fragile(torch.nn.Module):
    """Layers that may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = fragile(torch.tanh(layer(x)))
        return x


def broken_off(cuda: FakeCuda) -> None:
    """Steps that fail at each of their operations that can, one after the other."""
    torch.manual_seed(0)
    model, x = Fragile(), torch.randn(256, 64)
    compiled = torch.compile(model, backend="memsched", options={"budget": "20%", "bandwidth": "100GB/s"})
    calls_until_it_fails.clear()
    compiled(x).sum().backward()
    assert plans()[-1].result.timeline.bytes_out > 0
    unit._METERS.append(cuda)
    try:
        for number in range(1, 13):
            calls_until_it_fails[:] = [number]
            with pytest.raises(KeyError, match="enough"):
                compiled(x).sum().backward()
            gc.collect()
    finally:
        unit._METERS.remove(cuda)
        calls_until_it_fails.clear()


def test_steps_that_end_early_have_no_race(cuda: FakeCuda) -> None:
    """Copies under way when a step fails do not write to memory that others get."""
    broken_off(cuda)
    assert cuda.races == []


def test_a_step_that_does_not_clean_up_races(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies.Traffic, "_end", lambda traffic, event: None)
    broken_off(cuda)
    assert any("given back" in race for race in cuda.races)
