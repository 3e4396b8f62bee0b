"""All that a planned step has allocated: gradients that autograd copies, and what graphs within operations hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from memsched.torch.compiled.group import plans
from pytorch.allocator import allocator_peak

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
SMALL = 1024  # gradients of a loss, markers and such are in no plan


class GivesBack(torch.autograd.Function):
    """Its backward returns what it saved, for both factors."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        kept = a.sin()
        ctx.save_for_backward(kept)
        return (a * b).sum()

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (kept,) = ctx.saved_tensors
        return kept, kept


def gives_back(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = GivesBack.apply(a, b)  # type: ignore[no-untyped-call]
    return found


class Model(nn.Module):
    def __init__(self, loss: Loss, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(64, 256) for _ in range(count))
        self.linear = nn.Linear(64, 64)
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self, x) + self.linear(x).mean()


def large(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.unsqueeze(0) * torch.arange(1, 17).view(-1, 1, 1)).exp().mean(0)


def branch(model: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.cond(x.sum() > -1e9, large, torch.sin, (model.linear(x),))
    return found.square().mean()


def branch_without_gradient(model: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = torch.cond(x.sum() > -1e9, large, torch.sin, (model.linear(x),))
    return (model.linear(x) * found).mean()


def loop(model: Any, x: torch.Tensor) -> torch.Tensor:
    _, last = while_loop(lambda k, _: k < 3, lambda k, z: (k + 1, z.sin() + large(z)), (torch.tensor(0), x))
    found: torch.Tensor = model.linear(last).square().mean()
    return found


GRADIENTS: dict[str, tuple[Loss, int]] = {  # and how many gradients of 64 KiB there are
    "of a sum": (lambda model, x: model.weights[0].sum() * x.mean(), 1),
    "of columns": (lambda model, _: (model.weights[0].sum(0) * 2).mean() + model.weights[1].sum(), 2),
    "of parameters that are added": (
        lambda model, x: torch.tanh(x @ sum(model.weights[1:], model.weights[0])).mean(),
        4,
    ),
    "of one that is used twice": (lambda model, x: (x @ model.weights[0] + x @ model.weights[0].sin()).mean(), 1),
    "that are saved tensors": (lambda model, _: gives_back(model.weights[0], model.weights[1]), 2),
}
WITHIN = {one.__name__: one for one in (branch, branch_without_gradient, loop)}


def planned_and_allocated(loss: Loss, count: int = 0) -> tuple[int, int]:
    torch.manual_seed(0)
    model, x = Model(loss, count), torch.randn(64, 64)
    run = torch.compile(model, backend="memsched", options={"budget": "100%", "bandwidth": 0})

    def step() -> None:
        run(x).backward()

    step()
    model.zero_grad()
    plan = plans()[-1]
    return plan.peak_memory, plan.process_bytes(allocator_peak(step))


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be:DeprecationWarning")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_that_autograd_copies(name: str) -> None:
    """They were counted once where several parameters had the same, and not at all where they were broadcast."""
    loss, count = GRADIENTS[name]
    planned, allocated = planned_and_allocated(loss, count)
    assert allocated >= 2 * count * 64 * 256 * 4  # weights and gradients
    assert allocated - SMALL <= planned <= allocated + 64 * 64 * 4


@pytest.mark.parametrize("name", WITHIN)
def test_what_graphs_within_operations_hold(name: str) -> None:
    """It was not counted: a step held up to ten times its budget."""
    planned, allocated = planned_and_allocated(WITHIN[name])
    assert allocated - SMALL <= planned <= 1.25 * allocated
