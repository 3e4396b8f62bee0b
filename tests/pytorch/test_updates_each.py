"""Whole steps with optimisers of other classes than PyTorch's, which update each parameter by itself or do not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from updating import V100, Make, loss, mlp, planned, same, trains_alike

import memsched.torch as mt
from memsched.errors import InvalidInputError

EACH: dict[str, Any] = {"update": "each"}


class Own(torch.optim.Optimizer):
    """Of somebody's own."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "count": 0, "kept": []})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self.begin(group)
            for one in group["params"]:
                if one.grad is not None:
                    self.update(one, one.grad, group)

    def begin(self, group: dict[str, Any]) -> None:
        pass

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        raise NotImplementedError


class Lion(Own):
    """By signs, as Chen et al., 2023, do it."""

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        state = self.state[one]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(one)
        one.add_(torch.sign(0.9 * state["mean"] + 0.1 * gradient), alpha=-group["lr"])
        state["mean"].mul_(0.99).add_(gradient, alpha=0.01)


class KeepsForAll(Lion):
    """Writes to a list in its group that no update depends on."""

    def begin(self, group: dict[str, Any]) -> None:
        group["kept"][:] = [0.0]


class CountsInGroup(Lion):
    def begin(self, group: dict[str, Any]) -> None:
        group["count"] += 1

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.add_(gradient, alpha=-group["lr"] / group["count"])


class CountsInItself(Lion):
    steps = 0

    def begin(self, group: dict[str, Any]) -> None:
        self.steps += 1

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.add_(gradient, alpha=-group["lr"] / self.steps)


class ClipsAll(Lion):
    def begin(self, group: dict[str, Any]) -> None:
        norms = [one.grad.norm() for one in group["params"] if one.grad is not None]
        self.norm = torch.stack(norms).norm()

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.add_(gradient / (1 + self.norm), alpha=-group["lr"])


class AcrossGroups(Lion):
    """The rate of a group depends on the gradients of the one before."""

    largest = 1.0

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.add_(gradient, alpha=-group["lr"] * self.largest)
        self.largest = float(gradient.abs().max()) + 0.5


class LaterAlike(Lion):
    """Its states depend on each other, and parameters only later."""

    def begin(self, group: dict[str, Any]) -> None:
        means = [self.state[one]["mean"] for one in group["params"] if "mean" in self.state[one]]
        for one in means:
            one.add_(sum(float(other.sum()) for other in means), alpha=1e-3)


class NeedsMore(Lion):
    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.sub_(one.hessian)


class Subclass(torch.optim.Adam):
    """Of one of PyTorch's own."""


@pytest.mark.parametrize("kind", [Lion, pytest.param(KeepsForAll, marks=pytest.mark.slow), Subclass])
@pytest.mark.parametrize(
    "more", [{}, {"update_on_host": "1 TB/s"}, pytest.param({"offload_parameters": True}, marks=pytest.mark.slow)]
)
def test_steps_have_the_bits_of_plain_ones(kind: Any, more: dict[str, Any]) -> None:
    make: Make = lambda learned: kind(learned, lr=0.01)  # noqa: E731
    plan = trains_alike(mlp(), torch.randn(4, 24), make, "0%", **EACH, **more)
    assert plan.on_host or more
    assert f"by {kind.__name__}" in plan.report()


@pytest.mark.parametrize("kind", [CountsInGroup, CountsInItself, ClipsAll, AcrossGroups, LaterAlike])
def test_updates_that_depend_on_each_other_are_refused(kind: Any) -> None:
    model = mlp()
    groups = [{"params": list(one.parameters())} for one in model.children()]
    with pytest.raises(InvalidInputError, match=f"{kind.__name__} does otherwise .* one by one than with all at once"):
        planned(model, torch.randn(4, 24), kind(groups), **EACH)


def test_what_cannot_be_tried_is_refused() -> None:
    model, x = mlp(1), torch.randn(4, 24)
    with pytest.raises(InvalidInputError, match=r"NeedsMore cannot update a few parameters one by one \(.*hessian"):
        planned(model, x, NeedsMore(model.parameters()), **EACH)
    with pytest.raises(InvalidInputError, match=r"LBFGS cannot update a few parameters one by one \(.*closure"):
        planned(model, x, torch.optim.LBFGS(model.parameters()), **EACH)
    with pytest.raises(InvalidInputError, match=r"optimizer is Lion, .* update='each' if you know that they do not"):
        mt.plan_step(model, (x,), loss, budget="50%", device=V100, optimizer=Lion(model.parameters()), update=True)


def test_planning_leaves_an_optimizer_as_it_is() -> None:
    """Options that are changed in place, too; and random numbers."""
    model, x = mlp(), torch.randn(4, 24)
    other = copy.deepcopy(model)
    optimizer, plain = KeepsForAll(model.parameters()), KeepsForAll(other.parameters())
    before = torch.get_rng_state()
    plan = planned(model, x, optimizer, **EACH)
    assert torch.equal(torch.get_rng_state(), before)
    same(model, other, optimizer, plain)
    assert optimizer.param_groups[0]["kept"] == []
    plan.step(x)
    assert optimizer.param_groups[0]["kept"] == [0.0]


def test_large_parameters_are_tried_by_a_part() -> None:
    model = torch.nn.Linear(1024, 300)
    planned(model, torch.randn(2, 1024), Lion(model.parameters()), **EACH)
    model = torch.nn.Linear(1024, 300)
    with pytest.raises(InvalidInputError, match=r"a parameter of shape \(64, 1024\) differs after step 1"):
        planned(model, torch.randn(2, 1024), ClipsAll(model.parameters()), **EACH)
