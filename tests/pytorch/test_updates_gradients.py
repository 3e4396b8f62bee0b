"""Whole steps that clip their gradients, or add them to those of micro-batches before."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from updating import V100, Make, Sharing, Tied, cnn, counted_of, loss, mlp, same

import memsched as ms
import memsched.torch as mt
from memsched.errors import InfeasibleError, InvalidInputError
from memsched.torch import StepPlan

ADAMW: Make = lambda parameters: torch.optim.AdamW(parameters, lr=0.01)  # noqa: E731
NESTEROV: Make = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)  # noqa: E731


class Mixed(nn.Module):
    """Weights of three types, whose norms PyTorch takes by type."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6).bfloat16(), nn.Linear(6, 6).double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.c(self.b(torch.tanh(self.a(x)).bfloat16()).double())


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (mlp, torch.randn(8, 24)),
    "cnn": (cnn, torch.randn(4, 3, 8, 8)),
    "tied": (lambda: Tied().requires_grad_(True), torch.randint(0, 40, (4, 8))),
    "sharing": (Sharing, torch.randn(8, 6)),
    "mixed": (Mixed, torch.randn(8, 6)),
}


def planned(
    model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer, budget: Any = "0%", **options: Any
) -> StepPlan:
    """With the budget, or the least that has a plan."""
    given: dict[str, Any] = {"device": V100, "bandwidth": "12GB/s", "optimizer": optimizer, "update": True} | options
    for _ in range(3):  # the least of one of the two plans, perhaps
        try:
            return mt.plan_step(model, (x,), loss, budget=budget, **given)
        except InfeasibleError as error:
            budget = error.min_memory
    raise AssertionError("the least memory is too small")


def trains_alike(
    name: str, make: Make, budget: Any = "0%", *, micro: int = 1, max_norm: float | None = None, link: Any = "12GB/s"
) -> StepPlan:
    """Steps of a plan beside plain ones, and what `verify` says. The third step is one of a single micro-batch."""
    build, x = MODELS[name]
    model = build()
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    plan = planned(model, x, optimizer, budget, max_norm=max_norm, accumulate=micro > 1, bandwidth=link)
    assert plan.norm is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds the budget
        for step in range(4):
            parts = micro if step != 2 else 1
            for part in range(parts):
                given = torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 40)
                torch.manual_seed(10 * step + part)
                found = plan.step(given) if part == parts - 1 else plan.accumulate(given)
                torch.manual_seed(10 * step + part)
                wanted = loss(other(given))
                wanted.backward()
                assert torch.equal(found, wanted.detach())
                for (key, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
                    assert part == parts - 1 or a.grad is b.grad is None or torch.equal(a.grad, b.grad), key
            if max_norm is not None:
                assert torch.equal(nn.utils.clip_grad_norm_(other.parameters(), max_norm), plan.norm)
            plain.step()
            plain.zero_grad()
            same(model, other, optimizer, plain)
    verified = plan.verify(x)
    same(model, other, optimizer, plain)
    assert verified.reordered is None
    budget = plan.result.schedule.budget
    assert 0.99 * max(map(counted_of, filter(None, (plan, plan.waiting)))) <= verified.peak_memory <= budget
    assert plan.waiting is None or plan.waiting.peak_memory <= budget
    return plan


def some(*fast: str) -> list[Any]:
    """All models, of which those that are not fast are tried at night."""
    return [pytest.param(one, marks=() if one in fast else pytest.mark.slow) for one in MODELS]


@pytest.mark.parametrize("name", some("mlp", "mixed"))
def test_gradients_are_clipped(name: str) -> None:
    plan = trains_alike(name, NESTEROV if name in ("sharing", "cnn") else ADAMW, max_norm=0.01)
    assert plan.norm is not None
    assert plan.norm > 0.01
    assert "clipped" in plan.report()


@pytest.mark.slow
@pytest.mark.parametrize("link", [0, "12GB/s"])
@pytest.mark.parametrize("budget", ["40%", "100%"])
@pytest.mark.parametrize("max_norm", [0.01, float("inf")])
def test_gradients_are_clipped_at_any_budget(budget: str, link: Any, max_norm: float) -> None:
    trains_alike("mlp", ADAMW, budget, max_norm=max_norm, link=link)


@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("name", some("mlp"))
def test_gradients_of_micro_batches_add_up(name: str, max_norm: float | None) -> None:
    plan = trains_alike(name, NESTEROV if name in ("sharing", "cnn") else ADAMW, micro=3, max_norm=max_norm)
    assert "wait" in plan.report()


@pytest.mark.slow
@pytest.mark.parametrize("link", [0, "12GB/s"])
@pytest.mark.parametrize("budget", ["40%", "100%"])
def test_gradients_add_up_at_any_budget(budget: str, link: Any) -> None:
    trains_alike("mlp", ADAMW, budget, micro=2, link=link)


def test_gradients_that_are_clipped_need_not_all_be_there() -> None:
    """Where memory is too small for all of them, some are thrown away after their norm, and computed again."""
    model, x = mlp(6, 64), torch.randn(2, 64)
    gradients = sum(one.nbytes for one in model.parameters())
    plans = [
        planned(model, x, torch.optim.SGD(model.parameters(), lr=0.1), budget, bandwidth=0, max_norm=1.0)
        for budget in ("100%", "0%")
    ]
    assert plans[0].peak_memory > plans[1].peak_memory + 0.5 * gradients
    assert not plans[0].result.recomputed
    again = {op["name"] for op in plans[1].problem.ops if op["phase"] == "bwd"} & set(plans[1].result.recomputed)
    assert again
    assert plans[1].verify(x).peak_memory <= plans[1].result.schedule.budget


def test_a_norm_that_is_no_number_spoils_all_as_ever() -> None:
    model, x = mlp(), torch.randn(8, 24)
    plan = planned(model, x, ADAMW(model.parameters()), "100%", max_norm=1.0)
    plan.step(torch.full_like(x, float("nan")))
    assert plan.norm is not None
    assert plan.norm.isnan()
    assert all(bool(one.isnan().all()) for one in model.parameters())


def test_what_the_options_ask_for() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def refused(match: str, **options: Any) -> None:
        given: dict[str, Any] = {"optimizer": sgd, "update": True, **options}
        with pytest.raises(InvalidInputError, match=match):
            mt.plan_step(model, (x,), loss, budget="100%", device=V100, **given)

    refused("max_norm is -1; it must be a number >= 0", max_norm=-1)
    refused("max_norm is 'much'", max_norm="much")
    refused("accumulate is 4; give True or False", accumulate=4)
    refused("max_norm is 1.0, and update is not given", update=False, max_norm=1.0)
    refused("accumulate is True, and update is not given", update=False, accumulate=True)
    refused(
        "0.0.weight needs a gradient and is not updated",
        optimizer=torch.optim.SGD(model[1:].parameters(), lr=1.0),
        max_norm=1.0,
    )
    more = nn.Parameter(torch.zeros(3))
    for option in ({"max_norm": 1.0}, {"accumulate": True}):
        optimizer = torch.optim.SGD([*model.parameters(), more], lr=0.1)
        refused(
            rf"a parameter of shape \(3,\) that is not the model's, and {next(iter(option))}",
            optimizer=optimizer,
            **option,
        )
    plan = planned(model, x, sgd, "100%")
    with pytest.raises(InvalidInputError, match="planned without accumulate=True"):
        plan.accumulate(x)
    tied, tokens = MODELS["tied"][0](), MODELS["tied"][1]
    plan = planned(tied, tokens, torch.optim.SGD(tied.parameters(), lr=0.1), "100%", accumulate=True)
    tied.unused.weight.grad = torch.ones(16, 16)
    with pytest.raises(InvalidInputError, match=r"unused.weight has a gradient from before, and the step"):
        plan.step(tokens)
    plan = planned(model, x, sgd, "100%", max_norm=1.0)
    more = nn.Parameter(torch.zeros(24))
    model.register_parameter("more", more)
    with pytest.raises(InvalidInputError, match="more needs a gradient and is not updated"):
        plan.step(x)


def test_micro_batches_find_the_states_where_they_are() -> None:
    """At the least memory all of them are on the host; a plan of the micro-batches alone would count them."""
    model, x = mlp(), torch.randn(8, 24)
    plan = planned(model, x, ADAMW(model.parameters()), accumulate=True)
    assert plan.waiting is not None
    assert plan.on_host
    assert plan.waiting.plan.resident.optimizer < sum(plan.states.values())
    plan.accumulate(x)
    plan.step(x)
    plan.accumulate(x)
    for place in plan.on_host:
        assert plan._updates is not None
        assert plan._updates.lasting.states.has_left(place)
    ms.validate(plan.waiting.result)


def test_a_step_that_is_planned_anew_finds_the_states_where_its_own_plan_has_them() -> None:
    """Inputs that are parts of more memory leave less to the plan, which then keeps other states on the host."""
    model, x = mlp(8, 256), torch.randn(16, 256)
    plan = planned(model, x, ADAMW(model.parameters()), "60%", accumulate=True, max_norm=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds the budget
        for *first, last in torch.randn(3, 4, 16, 256):
            for one in first:
                plan.accumulate(one)
            plan.step(last)
