"""Budgets that are a share of a step, for batches of other sizes; and what takes a budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import memsched.torch as mt
from memsched.errors import InfeasibleError


class Widening(nn.Module):
    """Most of its memory at a small batch is that of parameters and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(3))
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def test_a_smaller_batch_may_take_what_a_larger_one_may() -> None:
    """A share of its own memory was too little for it, so that the last batch of an epoch ended training."""
    before, model = mt.plans(), Widening()  # of what other tests have left
    model.compile(backend="memsched", options={"budget": "50%", "device": "v100", "bandwidth": 0})
    for batch in (512, 300, 64, 4, 800, 64):
        model(torch.randn(batch, 512)).sum().backward()
        model.zero_grad()
    made = [one for one in mt.plans() if all(one is not other for other in before)]
    budgets = sorted(one.result.schedule.budget for one in made)
    assert set(budgets[:4]) == {budgets[0]}  # shares of their own are less, and were too little
    assert budgets[4] > budgets[0]


def test_a_plan_that_is_applied_holds_for_smaller_batches() -> None:
    model, x = Widening(), torch.randn(512, 512)
    mt.plan(model, (x,), budget="50%", device="v100", bandwidth=0).apply(model)
    for batch in (64, 512, 300):
        model(torch.randn(batch, 512)).sum().backward()
        model.zero_grad()


def test_gradients_from_before_are_named_where_they_take_the_budget() -> None:
    model, x = Widening(), torch.randn(512, 512)
    plan = mt.plan(model, (x,), budget="50%", device="v100", bandwidth=0)
    model.compile(backend="memsched", options={"budget": plan.peak_memory, "device": "v100", "bandwidth": 0})
    model(x).sum().backward()
    with pytest.raises(InfeasibleError, match=r"MiB are gradients from before, which zero_grad\(\) drops"):
        model(x)
    model.zero_grad()
    model(x).sum().backward()
