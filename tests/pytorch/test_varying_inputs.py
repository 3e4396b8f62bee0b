"""Inputs that change from step to step: numbers that are no sizes, and memory in which inputs lie."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from memsched.torch import plans
from memsched.torch.compiled.unit import counted


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor, k: int, cut: int | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x[:cut]) * (1 + k / 100) + k % 7)
        return x.square().mean()


@pytest.mark.parametrize("number", [lambda step: step + 2, lambda step: 90 - 3 * step])
def test_a_number_that_is_no_size_shares_a_plan(number: Callable[[int], int]) -> None:
    """Each value had a plan of its own, and took the time to make one."""
    torch._dynamo.reset()
    model = Scaled()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="memsched", options={"budget": "120KiB"})
    traced = torch.compile(plain, backend="aot_eager")
    before = len(plans())
    for step in range(12):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        losses = [call(x, number(step)) for call in (compiled, traced)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert len(plans()) - before <= 2  # a plan for the first value, before Dynamo lets it vary, and one for all


def test_a_number_that_is_a_size_does_not() -> None:
    torch._dynamo.reset()
    model = Scaled()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="memsched", options={"budget": "120KiB"}, dynamic=True)
    before = len(plans())
    for step, cut in enumerate((60, 50, 40)):
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        losses = [call(x, step, cut) for call in (compiled, plain)]
        for loss in losses:
            loss.backward()
        assert torch.equal(*losses)
    assert len(plans()) - before == 3


def test_inputs_in_larger_memory_are_planned_anew() -> None:
    """The first step's inputs lie in memory of their own, later ones in that of all batches."""
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    batches = torch.randn(5 * 512, 64)
    budget = sum(one.nbytes for one in model.parameters()) * 2 + batches.nbytes + 900_000
    compiled = torch.compile(model, backend="memsched", options={"budget": budget})
    for x in (torch.randn(512, 64), batches[:512], torch.randn(512, 64), batches[512:1024]):
        with counted(torch.device("cpu")) as meter:
            compiled(x).sum().backward()
        model.zero_grad()
        (plan,) = (one for one in plans()[-2:] if one.resident.inputs == x.untyped_storage().nbytes())
        assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
    assert [one.resident.inputs for one in plans()[-2:]] == [512 * 64 * 4, batches.nbytes]
