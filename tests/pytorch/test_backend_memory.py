"""What a planned step holds, as a meter and PyTorch's own allocator say, and damaged plans in the cache."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing.mutate import mutate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from memsched.torch.compiled import cache
from memsched.torch.compiled.copies import Traffic
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unit import counted
from memsched.torch.lanes import EmulatedLanes
from pytorch.allocator import allocator_peak
from pytorch.compiled_models import UNet, layers
from pytorch.test_backend_odd import some_slow
from pytorch.test_compiled import CASES

CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16


def residual(norm: Callable[[int], nn.Module], width: int = 64) -> nn.Sequential:
    """Normalised layers, whose statistics are a good part of what is kept for the backward where the width is small."""
    return nn.Sequential(*(nn.Sequential(norm(width), nn.Linear(width, width), nn.GELU()) for _ in range(6)))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]], torch.dtype | None]] = {
    **{name: (build, lambda inputs=inputs: tuple(inputs()), None) for name, (build, inputs) in CASES.items()},
    "unet": (UNet, lambda: (torch.randn(2, 3, 16, 16),), None),
    "layer_norm": (lambda: residual(nn.LayerNorm, 8), lambda: (torch.randn(512, 8),), BFLOAT16),
    "group_norm": (lambda: residual(lambda width: nn.GroupNorm(4, width), 8), lambda: (torch.randn(512, 8),), BFLOAT16),
}
EXACT = {"transformer"}
"""The kernels of the others take memory within, for which there is `reserve`."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("budget", ["50%", pytest.param("80%", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some_slow(MODELS, ("transformer", "group_norm")))
def test_a_step_holds_no_more_than_the_budget(name: str, budget: str) -> None:
    """The meter of the tests misses no tensor that the allocator knows."""
    build, inputs, dtype = MODELS[name]
    model, args = build(), inputs()
    run = torch.compile(model, backend="memsched", options={"budget": budget, "device": "v100", "bandwidth": 0})

    def step() -> None:
        with torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext():
            result = run(*args)
        # What a loss outside the model would need is no part of the plan.
        result.backward(result if result.ndim == 0 else result.detach())

    for _ in range(2):
        model.zero_grad()
        with counted(CPU) as meter:
            step()
    plan = plans()[-1]
    assert plan.result.recomputed
    model.zero_grad()
    allocated, seen = (plan.process_bytes(peak) for peak in (allocator_peak(step), meter.peak))
    assert seen <= plan.result.schedule.budget
    assert allocated >= seen - plan.resident.results
    if name in EXACT:  # blocks for gradients of scalars, and the marker of the backward, are no tensors of the plan
        assert allocated == pytest.approx(seen, rel=0.01, abs=4096)


def test_statistics_in_half_precision_are_counted_as_wide_as_they_are() -> None:
    """On the CPU they are as wide as the parameters, and PyTorch traces them as wide as the input."""
    build, inputs, dtype = MODELS["layer_norm"]
    model, args = build(), inputs()
    run = torch.compile(model, backend="memsched", options={"budget": "100%", "device": "v100", "bandwidth": 0})
    with counted(CPU) as meter, torch.autocast("cpu", dtype=dtype):
        result = run(*args)
        result.backward(result.detach())
    plan = plans()[-1]
    small = plan.resident.results + plan.resident.updates
    assert plan.result.peak_memory - small <= plan.process_bytes(meter.peak) <= plan.result.peak_memory


def test_a_damaged_plan_in_the_cache_is_good_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step trains as ever, and no document leads over its budget."""
    monkeypatch.setenv("MEMSCHED_CACHE", str(tmp_path))
    torch.manual_seed(0)
    model, x = layers(3), torch.randn(64, 32)
    options = {"budget": "70%", "device": "v100", "bandwidth": 0}

    def step() -> list[bytes]:
        torch._dynamo.reset()
        model.zero_grad()
        run = torch.compile(model, backend="memsched", options=options)
        with counted(CPU) as meter:
            run(x).square().sum().backward()
        assert plans()[-1].process_bytes(meter.peak) <= plans()[-1].result.schedule.budget
        return [p.grad.numpy().tobytes() for p in model.parameters() if p.grad is not None]

    wanted = step()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()

    @settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        file.write_bytes(mutate("torch", whole, whole, seed))
        assert step() == wanted
        assert cache.find(file.stem) is not None

    check()


def test_what_a_killed_process_left_in_the_cache_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", str(tmp_path))
    old, new = tmp_path / ".memsched-0123456789abcdef", tmp_path / ".memsched-fedcba9876543210"
    for left in (old, new):
        left.write_text("{")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    cache.keep("key", {"format": cache.FORMAT})
    assert {path.name for path in tmp_path.iterdir()} == {new.name, "key.json"}


@given(st.lists(st.integers(1, 4), max_size=60), st.integers(0, 12), st.randoms(use_true_random=False))
def test_spare_memory_of_many_sizes(sizes: list[int], most: int, chance: random.Random) -> None:
    """A list of spare memory that was empty ended training with links in an IndexError."""
    traffic = Traffic(EmulatedLanes())
    traffic.most = 16 * most
    hosts: list[torch.Tensor] = []
    largest = 0
    for size in sizes:
        value = torch.full((16 * size,), size, dtype=torch.uint8)
        hosts.append(traffic.offload(value))
        used = sum(host.numel() for host in hosts)
        largest = max(largest, used)
        assert traffic.spare_bytes + used <= max(traffic.most, largest)
        while hosts and chance.random() < 0.5:
            host = hosts.pop(chance.randrange(len(hosts)))
            back = traffic.arrived(traffic.prefetch(host), host)
            assert torch.equal(back, torch.full_like(back, host.numel() // 16))
            del host
