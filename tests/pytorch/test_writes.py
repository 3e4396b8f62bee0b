"""Models that write where a repeated run could not take it back, and results that are views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.errors import MemschedError
from memsched.torch import HookedPlan

V100 = "v100:pcie3"


class Net(nn.Module):
    """Four layers, a buffer, and a forward that a subclass makes special."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("shift", torch.full((16,), 0.5))
        self.weight = nn.Parameter(torch.eye(16))

    def run(self, x: Any, layers: slice = slice(None)) -> Any:
        for layer in list(self.layers)[layers]:
            x = torch.tanh(layer(x))
        return x


class ReadEarlyWriteLate(Net):
    def forward(self, x: Any) -> Any:
        x = self.run(torch.tanh(self.layers[0](x) + self.shift))
        self.shift.copy_(x.detach().mean(0))
        return x


class WritesItsInput(Net):
    def forward(self, x: Any) -> Any:
        return self.run(x.mul_(2))


class ClampsAParameter(Net):
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return self.run(x @ self.weight)


class WritesBetween(Net):
    def forward(self, x: Any) -> Any:
        weight = self.weight + self.shift
        self.shift.add_(1)
        return self.run(x) @ weight


class NormalisesOften(Net):
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.relu(self.norm(layer(x)))
        return x


class ReturnsViews(Net):
    def forward(self, x: Any) -> Any:
        return self.run(x), x.view(-1), self.weight.t()


class SavesANegativeView(Net):
    def forward(self, x: Any) -> Any:
        z = torch.complex(self.run(x), self.layers[0](x)).conj()
        return self.run(z.imag * z.real)


REFUSED = (ReadEarlyWriteLate, WritesItsInput, ClampsAParameter)
ALL = (*REFUSED, WritesBetween, NormalisesOften, ReturnsViews, SavesANegativeView)


def made(kind: type[Net]) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return kind().train(), torch.randn(8, 16)


@pytest.mark.filterwarnings("ignore:.*saved-tensor hooks.*:UserWarning")
@pytest.mark.parametrize("kind", ALL)
def test_a_planned_step_is_a_plain_step(kind: type[Net]) -> None:
    """Step by step, since `verify` would give the same arguments twice to a model that changes them."""
    model, x = made(kind)
    plan = ms.torch.plan(model, (x.clone(),), budget="100%", device=V100, time_limit=0.05)
    results = []
    for planned in (False, True):
        model, x = made(kind)
        if planned:
            planners = ("offload",) if isinstance(plan, HookedPlan) else ("rotor", "offload")
            plan.at("0%", planner=planners[0], time_limit=0.05).apply(model)
        for _ in range(2):
            outputs = model(x.clone())
            first = outputs[0] if isinstance(outputs, tuple) else outputs
            first.square().sum().backward()
        results.append([first, *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_repeated_is_planned_with_hooks(kind: type[Net]) -> None:
    model, x = made(kind)
    with pytest.warns(
        UserWarning, match=r"(writes to its (input|parameter)|is changed in one stage and used in another)"
    ):
        plan = ms.torch.plan(model, (x,), budget="100%", device=V100)
    assert isinstance(plan, HookedPlan)


def test_a_plan_is_for_the_operations_that_were_captured() -> None:
    tanh, relu = (nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 8)).train() for kind in (nn.Tanh, nn.ReLU))
    x = torch.randn(4, 8)
    plan = ms.torch.plan(tanh, (x,), budget="100%", device=V100)
    with pytest.raises(MemschedError, match="differs in its stages"):
        plan.apply(relu)


def test_the_mode_that_counts_is_that_of_the_capture() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).train()
    x = torch.randn(4, 8)
    plan = ms.torch.plan(model, (x,), budget="100%", device=V100)
    model.eval()
    plan.apply(model)
    model(x)
    model.train()
    model(x).sum().backward()
    model[1].eval()
    with pytest.raises(MemschedError, match="the model has changed since it was planned"):
        model(x)
    with pytest.raises(MemschedError, match=r"model\.train\(\)"):
        plan.verify(model.eval(), (x,))
