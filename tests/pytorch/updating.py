"""Models and steps for tests of whole steps, whose plan updates the parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import memsched.torch as mt
from memsched.errors import InfeasibleError
from memsched.torch import StepPlan

V100 = "v100:pcie3"
Make = Callable[[Any], torch.optim.Optimizer]


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def mlp(layers: int = 4, width: int = 24) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*parts, nn.Dropout(0.2), nn.Flatten(), nn.Linear(16 * 64, 10))


class Tied(nn.Module):
    """Reads a weight twice, leaves one out, and has one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(40, 16)
        self.middle = nn.Linear(16, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.unused = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.table(tokens)
        x = x + self.frozen(torch.nn.functional.gelu(self.middle(x)))
        return self.norm(x) @ self.table.weight.t()


class Sharing(nn.Module):
    """Gradients of its weights are one tensor, which its first layer's backward reads, too; one lies otherwise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.a, self.b, self.c = (nn.Parameter(torch.randn(8, 6)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.first(x) + self.a + self.b)
        return x @ self.c.t() + (self.c.t() @ x).sum()


def planned(
    model: nn.Module,
    x: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    budget: Any = "0%",
    link: Any = "12GB/s",
    **more: Any,
) -> StepPlan:
    """With the budget, or the least that has a plan."""

    def within(given: Any) -> StepPlan:
        options: dict[str, Any] = {"device": V100, "bandwidth": link, "optimizer": optimizer, "planner": "selective"}
        return mt.plan_step(model, (x,), loss, budget=given, **{**options, "update": True, **more})

    try:
        return within(budget)
    except InfeasibleError as error:
        return within(error.min_memory)


def same(model: nn.Module, other: nn.Module, optimizer: Any, plain: Any) -> None:
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert (a.grad is None) == (b.grad is None), name
    for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b), name
    assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
    found, wanted = optimizer.state_dict()["state"], plain.state_dict()["state"]
    assert found.keys() == wanted.keys()
    for key, state in wanted.items():
        assert found[key].keys() == state.keys()
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(found[key][name], value), (key, name)
            elif isinstance(value, list):
                assert all(map(torch.equal, found[key][name], value)), (key, name)
            else:
                assert found[key][name] == value, (key, name)


def plain_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    found = loss(model(x))
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def counted_of(plan: StepPlan) -> int:
    """Its peak without what no meter sees."""
    return plan.peak_memory - plan.plan.resident.random - plan.plan.resident.updates


def trains_alike(
    model: nn.Module,
    x: torch.Tensor,
    make: Make,
    budget: Any = "0%",
    link: Any = "12GB/s",
    stepped: bool = False,
    **more: Any,
) -> StepPlan:
    """Three steps of a plan beside three plain ones, and what `verify` says."""
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    for one in ((model, optimizer), (other, plain)) if stepped else ():
        plain_step(one[0], x, one[1])
    plan = planned(model, x, optimizer, budget, link, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds the budget
        for step in range(3):
            torch.manual_seed(step)
            found = plan.step(x)
            torch.manual_seed(step)
            assert torch.equal(found, plain_step(other, x, plain))
            same(model, other, optimizer, plain)
    verified = plan.verify(x)
    same(model, other, optimizer, plain)
    assert verified.reordered is None
    assert verified.peak_memory <= plan.result.schedule.budget
    assert plan._updates is not None
    # The first updates of RAdam take less than those from its sixth on. Steps do not overlap, as in a plan they may.
    if not isinstance(optimizer, torch.optim.RAdam) and not plan._updates.hosted:
        assert verified.peak_memory >= 0.99 * counted_of(plan)
    return plan


def of_class(name: str) -> Make:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    if name == "Muon":  # for matrices
        return lambda parameters: torch.optim.Muon([one for one in parameters if one.dim() == 2], lr=1e-2)
    return lambda parameters: getattr(torch.optim, name)(parameters, lr=1e-2, **options)
