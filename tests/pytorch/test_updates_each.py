"""Whole steps with optimisers of other classes than PyTorch's, which update each parameter by itself or do not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from updating import V100, Make, loss, mlp, plain_step, planned, same, trains_alike

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


class CountsForNobody(Lion):
    """Its count is saved, and no update reads it."""

    def begin(self, group: dict[str, Any]) -> None:
        group["count"] += 1


class CountsInState(Lion):
    """Every fiftieth step does more."""

    def begin(self, group: dict[str, Any]) -> None:
        self.state["count"] = self.state.get("count", 0) + 1


class SkipsAll(Lion):
    """If one gradient is not finite."""

    def begin(self, group: dict[str, Any]) -> None:
        self.skips = not all(bool(one.grad.isfinite().all()) for one in group["params"] if one.grad is not None)

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        if not self.skips:
            one.add_(gradient, alpha=-group["lr"])


class OwnList(Lion):
    """Steps what it was made with."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        self.mine = [one for group in self.param_groups for one in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for one in self.mine:
            if one.grad is not None:
                one.add_(one.grad, alpha=-0.01)


class ClipsIfTold(Lion):
    """By an option that it keeps in itself, where its class has another."""

    most: float | None = None

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        self.most = 1e-3

    def begin(self, group: dict[str, Any]) -> None:
        norms = [one.grad.norm() for one in group["params"] if one.grad is not None]
        self.factor = 1.0 if self.most is None else min(1.0, self.most / float(torch.stack(norms).norm()))

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.add_(gradient * self.factor, alpha=-group["lr"])


class Decays(Lion):
    """Weights, by their names, at a rate that it keeps in itself."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, lr)
        self.rate = 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one, name in zip(group["params"], group["param_names"], strict=True):
                if one.grad is not None:
                    one.mul_(1 - self.rate * name.endswith("weight")).add_(one.grad, alpha=-group["lr"])


class KeepsLists(Lion):
    """Its states are in a list, as those of Shampoo are."""

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        state = self.state[one]
        if "all" not in state:
            state["all"] = [torch.zeros_like(one) for _ in range(3)]
        for value in state["all"]:
            value.mul_(0.9).add_(gradient)
        one.add_(state["all"][2], alpha=-group["lr"])


class NeedsMore(Lion):
    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        one.sub_(one.hessian)


class Masters(Own):
    """Adam of weights in bf16 by copies in float32, from which the weights are rounded anew in each step."""

    def update(self, one: Any, gradient: Any, group: dict[str, Any]) -> None:
        state = self.state[one]
        if not state:
            state |= {"master": one.float(), "step": torch.zeros(())}
            state |= {name: torch.zeros_like(state["master"]) for name in ("mean", "square")}
        gradient = gradient.float()
        state["step"] += 1
        state["mean"].lerp_(gradient, 0.1)
        state["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        step = state["step"].item()
        root = (state["square"] / (1 - 0.999**step)).sqrt_().add_(1e-8)
        state["master"].addcdiv_(state["mean"], root, value=-group["lr"] / (1 - 0.9**step))
        one.copy_(state["master"])


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


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"update_on_host": "1 TB/s"},
        pytest.param({"accumulate": True, "offload_parameters": True, "max_norm": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_weights_in_bf16_with_masters_in_float32(more: dict[str, Any]) -> None:
    """12 bytes a weight beside its own two, all of which travel."""
    model, x = mlp().bfloat16(), torch.randn(4, 24).bfloat16()
    plan = trains_alike(model, x, lambda learned: Masters(learned, lr=0.01), "0%", **EACH, **more)
    assert sum(plan.states.values()) == 6 * sum(one.nbytes for one in model.parameters())
    assert plan.result.peak_memory < sum(plan.states.values()) + sum(one.nbytes for one in model.parameters())


DEPENDENT = [CountsInGroup, CountsInItself, ClipsAll, AcrossGroups, LaterAlike, CountsForNobody, CountsInState]
DEPENDENT += [SkipsAll, OwnList, ClipsIfTold]


@pytest.mark.parametrize("kind", DEPENDENT)
def test_updates_that_depend_on_each_other_are_refused(kind: Any) -> None:
    model = mlp()
    groups = [{"params": list(one.parameters())} for one in model.children()]
    with pytest.raises(InvalidInputError, match=f"{kind.__name__} does otherwise .* one by one than with all at once"):
        planned(model, torch.randn(4, 24), kind(groups), **EACH)


def test_names_of_parameters_and_attributes_are_those_of_the_optimizer() -> None:
    model, x = mlp(), torch.randn(4, 24)
    for more in ({}, {"update_on_host": "1 TB/s"}):
        other = copy.deepcopy(model)
        optimizer, plain = Decays(model.named_parameters()), Decays(other.named_parameters())
        plan = planned(model, x, optimizer, **EACH, **more)
        for _ in range(3):
            assert torch.equal(plan.step(x), plain_step(other, x, plain))
            same(model, other, optimizer, plain)
        plan.verify(x)


def test_states_in_lists_do_not_travel_and_count() -> None:
    model, x = mlp(4, 64), torch.randn(4, 64)
    other = copy.deepcopy(model)
    optimizer, plain = KeepsLists(model.parameters()), KeepsLists(other.parameters())
    plan = planned(model, x, optimizer, **EACH)
    states = 3 * sum(one.nbytes for one in model.parameters())
    assert not plan.states
    assert plan.plan.resident.optimizer == states
    for _ in range(3):
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        same(model, other, optimizer, plain)
    assert states < plan.verify(x).peak_memory <= plan.result.schedule.budget


def test_planning_does_not_touch_parameters_that_an_optimizer_has_elsewhere() -> None:
    model, x = mlp(), torch.randn(4, 24)
    before = copy.deepcopy(model.state_dict())
    loss(model(x)).backward()
    with pytest.raises(InvalidInputError, match="one by one than with all at once"):
        planned(model, x, OwnList(model.parameters()), **EACH)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


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
