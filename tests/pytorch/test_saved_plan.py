"""A plan of a model that version 0.1.0 saved is loaded, applied, and trains as the model does without it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from memsched.torch import TorchPlan

SAVED = Path(__file__).parents[1] / "saved" / "0.1.0" / "torch_plan.json"


def test_a_saved_plan_trains() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model, batch = nn.Sequential(*layers), torch.randn(128, 64)
    model(batch).sum().backward()
    plain = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    plan = TorchPlan.load(SAVED)
    plan.apply(model)
    model(batch).sum().backward()
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), plain, strict=True))
