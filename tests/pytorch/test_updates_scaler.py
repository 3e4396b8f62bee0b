"""Whole steps whose loss is scaled: gradients are unscaled, and nothing is updated where one is not finite."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_updates_gradients import ADAMW, MODELS, planned, some
from torch import nn
from updating import V100, Make, counted_of, loss, mlp, same

import memsched.torch as mt
from memsched.errors import InvalidInputError
from memsched.torch import StepPlan

Loss = Callable[[torch.Tensor], torch.Tensor]
MOMENTUM: Make = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # noqa: E731


def scalers(**options: Any) -> tuple[torch.amp.GradScaler, torch.amp.GradScaler]:
    """Two that are alike, and whose scale grows after two steps."""
    made = torch.amp.GradScaler("cpu", **{"growth_interval": 2, "init_scale": 3000.0} | options)
    return made, copy.deepcopy(made)


def steps_alike(
    model: nn.Module,
    x: torch.Tensor,
    make: Make,
    plain_loss: Callable[[nn.Module], Loss],
    *,
    bad: tuple[int, ...] = (),
    micro: int = 1,
    max_norm: float | None = None,
    budget: Any = "0%",
    link: Any = "12GB/s",
    **scaled: Any,
) -> StepPlan:
    """Six steps of a plan beside a plain loop with a scaler; the inputs of the `bad` ones are infinite."""
    other = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(other.parameters())
    scaler, second = scalers(**scaled)
    options: dict[str, Any] = {"max_norm": max_norm, "accumulate": micro > 1, "bandwidth": link, "scaler": scaler}
    plan = planned(model, x, optimizer, budget, **options)
    step_of = plain_loss(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none exceeds the budget
        for step in range(6):
            for part in range(micro):
                given = torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 40)
                if step in bad and part == 0:
                    given.flatten()[3] = math.inf
                torch.manual_seed(10 * step + part)
                found = plan.step(given) if part == micro - 1 else plan.accumulate(given)
                torch.manual_seed(10 * step + part)
                wanted = step_of(given)
                second.scale(wanted).backward()
                assert torch.equal(found, wanted.detach()) or step in bad
            if max_norm is not None:
                second.unscale_(plain)
                norm = nn.utils.clip_grad_norm_(other.parameters(), max_norm)
                assert torch.equal(norm, plan.norm) or (norm.isnan() and plan.norm.isnan())
            second.step(plain)
            second.update()
            plain.zero_grad()
            same(model, other, optimizer, plain)
            assert scaler.state_dict() == second.state_dict()
    return plan


@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("name", some("mlp"))
def test_a_scaled_step_is_that_of_a_plain_loop(name: str, micro: int, max_norm: float | None) -> None:
    """The first step and one in between are left out, so that states are made late."""
    build, x = MODELS[name]
    bad = (0, 3) if x.is_floating_point() and name != "cnn" else ()  # whose running statistics stay infinite
    make = MOMENTUM if name in ("sharing", "cnn") else ADAMW
    model = build()
    plan = steps_alike(
        model, x, make, lambda other: lambda given: loss(other(given)), bad=bad, micro=micro, max_norm=max_norm
    )
    state, scale = copy.deepcopy(model.state_dict()), plan._scaling and plan._scaling.scaler.get_scale()
    verified = plan.verify(x)
    assert verified.reordered is None
    assert all(map(torch.equal, state.values(), model.state_dict().values()))
    assert scale == (plan._scaling and plan._scaling.scaler.get_scale())
    budget = plan.result.schedule.budget
    assert 0.99 * max(map(counted_of, filter(None, (plan, plan.waiting)))) <= verified.peak_memory <= budget
    assert "scaled" in plan.report()


@pytest.mark.slow
@pytest.mark.parametrize("link", [0, "12GB/s"])
@pytest.mark.parametrize("budget", ["40%", "100%"])
@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_at_any_budget(budget: str, link: Any, max_norm: float | None) -> None:
    build, x = MODELS["mlp"]
    plain = lambda other: lambda given: loss(other(given))  # noqa: E731
    steps_alike(build(), x, ADAMW, plain, bad=(0, 1, 4), max_norm=max_norm, budget=budget, link=link)


@pytest.mark.parametrize(("scale", "left_out"), [(2.0**14, False), (2.0**40, True)])
def test_under_autocast_to_fp16_it_is_that_of_aot_eager(scale: float, left_out: bool) -> None:
    """Autograd itself has other bits there. A scale that is too large overflows, and is halved."""

    def plain_loss(other: nn.Module) -> Loss:
        compiled: Loss = torch.compile(lambda given: loss(other(given)), backend="aot_eager", dynamic=False)
        return compiled

    with torch.autocast("cpu", dtype=torch.float16):
        plan = steps_alike(mlp(), torch.randn(8, 24), ADAMW, plain_loss, max_norm=0.1, init_scale=scale)
    assert plan._scaling is not None
    assert (plan._scaling.scaler.get_scale() < scale) is left_out


def test_double_gradients_beyond_those_of_float_are_finite() -> None:
    """They would be infinite as floats, and the step was left out."""
    torch.manual_seed(0)
    model, x = nn.Linear(6, 6).double(), torch.randn(4, 6).double()
    plain = lambda other: lambda given: (other(given) * 1e30).sum()  # noqa: E731
    other = copy.deepcopy(model)
    optimizer, own = MOMENTUM(model.parameters()), MOMENTUM(other.parameters())
    scaler, second = scalers(init_scale=1e15)
    given: dict[str, Any] = {"budget": "100%", "device": V100, "optimizer": optimizer, "update": True, "scaler": scaler}
    plan = mt.plan_step(model, (x,), lambda out: (out * 1e30).sum(), **given)
    before = model.weight.detach().clone()
    plan.step(x)
    second.scale(plain(other)(x)).backward()
    second.step(own)
    second.update()
    own.zero_grad()
    same(model, other, optimizer, own)
    assert not torch.equal(before, model.weight)


def test_without_updates_gradients_are_scaled() -> None:
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other))
    scaler, second = scalers()
    plan = mt.plan_step(model, (x,), loss, budget="100%", device=V100, optimizer=optimizer, scaler=scaler)
    for _ in range(3):
        plan.step(x)
        second.scale(loss(other(x))).backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        for one, of in ((scaler, optimizer), (second, plain)):
            one.step(of)
            one.update()
            of.zero_grad()
    assert scaler.state_dict() == second.state_dict()
    assert plan.verify(x).reordered is None


def test_a_scaler_that_is_off_changes_nothing() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    off = torch.amp.GradScaler("cpu", enabled=False)
    plan = planned(model, x, optimizer, scaler=off)
    assert plan.result.graph == planned(model, x, optimizer).result.graph
    plan.step(x)


class Odd(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        """Does nothing."""


class ElsewhereScaler(torch.amp.GradScaler):
    """As there is where a GPU is."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self._device = "cuda"


@pytest.mark.parametrize(
    ("change", "scaler", "told"),
    [
        ({}, 1024.0, r"scaler is 1024\.0; give a torch\.amp\.GradScaler, or leave it out"),
        ({}, Odd("cpu"), "scaler is a Odd, which does otherwise"),
        ({}, ElsewhereScaler(), "scaler is one for cuda, and the model is on cpu"),
        ({"fused": True}, torch.amp.GradScaler("cpu"), "the optimizer is fused, which unscales by itself"),
        ({"dtype": torch.float16}, torch.amp.GradScaler("cpu"), r"a parameter of shape .* is torch\.float16"),
    ],
)
def test_what_does_not_scale_is_refused(change: dict[str, Any], scaler: Any, told: str) -> None:
    model = mlp().to(change.get("dtype", torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), fused=change.get("fused", False))
    x = torch.randn(8, 24, dtype=change.get("dtype", torch.float32))
    with pytest.raises(InvalidInputError, match=told):
        planned(model, x, optimizer, scaler=scaler)
