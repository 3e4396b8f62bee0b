"""What a loss that stands outside the model holds, and what looking at it leaves behind."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import memsched as ms
import memsched.torch as mt
from memsched.torch.errors import CaptureError
from pytorch.allocator import allocator_peak

Loss = Callable[[torch.Tensor], torch.Tensor]
SMALL = 1024
WANTED = torch.randn(512, 64)
FACTORS = [torch.randn(64, 256, requires_grad=True) for _ in range(2)]
CLASSES = torch.randint(0, 64, (512,))

LOSSES: dict[str, Loss] = {
    "cross entropy": lambda out: functional.cross_entropy(out, CLASSES),
    "contrast": lambda out: functional.cross_entropy(functional.normalize(out) @ functional.normalize(out).T, CLASSES),
    "squares, whose value keeps all of them": lambda out: functional.mse_loss(out, WANTED),
    "with weights of its own": lambda out: (out @ FACTORS[0] + out @ FACTORS[1]).tanh().mean(),
    "in place": lambda out: (out * 3).div_(2).square().mean(),
    "mean": torch.mean,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(5)))


def allocated(model: nn.Module, plan: mt.TorchPlan, x: torch.Tensor, loss: Loss) -> int:
    """Bytes of the process in a steady step."""

    def step() -> Any:
        value = loss(model(x))
        value.backward()
        return value

    for _ in range(2):
        step()
        for one in (*model.parameters(), *FACTORS):
            one.grad = None
    return plan.plan.process_bytes(allocator_peak(step))


@pytest.mark.parametrize("budget", ["20%", "100%"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_holds_what_is_counted(name: str, budget: str) -> None:
    """The gradients of the model's results were left out, and what the loss keeps after it ran."""
    model, x, loss = network(), torch.randn(512, 64), LOSSES[name]
    plan = mt.plan(model, (x,), budget=budget, loss=loss)
    plan.apply(model)
    assert allocated(model, plan, x, loss) <= plan.result.schedule.budget + SMALL
    whole = mt.plan(network(), (x,), budget="100%", loss=loss).plan
    assert whole.peak_memory <= 1.02 * allocated(network(), plan, x, loss) + SMALL


@pytest.mark.parametrize("saved", [False, True])
def test_a_larger_batch_has_a_larger_loss(saved: bool) -> None:
    """It was planned with the loss of the batch that `plan` was given."""
    model, loss = network(), LOSSES["mean"]

    def costly(out: torch.Tensor) -> torch.Tensor:
        return torch.stack([(out * k).sin() for k in range(1, 9)]).mean()

    small, large = torch.randn(64, 64), torch.randn(512, 64)
    enough = mt.plan(network(), (large,), budget="100%", loss=costly).result.schedule.budget
    plan = mt.plan(model, (small,), budget=enough, loss=costly)
    if saved:
        plan = mt.TorchPlan.load(json.dumps(plan.to_json()))
    plan.apply(model)
    assert allocated(model, plan, large, costly) <= enough + SMALL
    assert (
        plan.loss
        == mt.plan(network(), (small,), budget=enough, loss=costly).loss
        > mt.plan(network(), (small,), budget=enough, loss=loss).loss
    )


def test_a_loss_that_needs_no_gradient_is_refused() -> None:
    with pytest.raises(ms.InvalidInputError, match="loss returns a number that needs no gradient: it detaches"):
        mt.plan(network(), (torch.randn(512, 64),), budget="50%", loss=lambda out: out.detach().mean())


def test_plans_of_before_have_a_number_for_the_loss() -> None:
    plan = mt.plan(network(), (torch.randn(64, 64),), budget="100%", loss=torch.mean)
    document = plan.to_json() | {"loss": 77}
    assert mt.TorchPlan.load(document).loss == 77


@functools.lru_cache
def window(count: int) -> torch.Tensor:
    return torch.ones(count) / count


@functools.cache
def pair(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(count) / count, torch.zeros(count)


class Slots:
    __slots__ = ("kept",)


class Kept(dict[str, torch.Tensor]):
    """Whose reading could do anything."""


def endless() -> Iterator[torch.Tensor]:
    kept = torch.ones(64)
    while True:
        yield kept


SLOTS, KEPT, LOCAL, ENDLESS = Slots(), Kept(), threading.local(), endless()


def into_slots() -> torch.Tensor:
    if not hasattr(SLOTS, "kept"):
        SLOTS.kept = torch.ones(64)
    return SLOTS.kept


def into_thread() -> torch.Tensor:
    if not hasattr(LOCAL, "kept"):
        LOCAL.kept = torch.ones(64)
    found: torch.Tensor = LOCAL.kept
    return found


def into_library() -> torch.Tensor:
    found: torch.Tensor = vars(functional).setdefault("_kept", torch.ones(64))
    return found


class Between(nn.Module):
    """Runs a function between its graphs, which is not captured."""

    def __init__(self, kept: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.kept = torch.compiler.disable(kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x) * self.kept())
        return found


def trains(model: nn.Module, loss: Loss) -> bool:
    before = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    loss(model(torch.randn(8, 64))).backward()
    optimizer.step()
    return not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("cached", [lambda: window(64), lambda: pair(64)[0]])
@pytest.mark.parametrize("between", [False, True])
def test_caches_of_functions_keep_no_tensors_without_data(between: bool, cached: Callable[[], torch.Tensor]) -> None:
    """Training went on with them, and changed nothing, without a word."""
    window.cache_clear()
    pair.cache_clear()
    model = Between(cached) if between else network()

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out if between else out * cached()).square().mean()

    mt.plan(model, (torch.randn(8, 64),), budget="100%", loss=loss)
    assert trains(model, loss)


KEEPERS: list[tuple[Callable[[], torch.Tensor], str]] = [
    (into_slots, "an object of type Slots"),
    (lambda: KEPT.setdefault("w", torch.ones(64)), "an object of type Kept"),
    (into_thread, "an object of type dict"),
    (into_library, "the module torch.nn.functional"),
    (lambda: next(ENDLESS), "the generator endless"),
]


@pytest.mark.parametrize(
    ("planned", "kept", "named"),
    [
        pytest.param(way, *keeper, marks=() if (k + w) % 3 == 0 else pytest.mark.slow)
        for k, keeper in enumerate(KEEPERS)
        for w, way in enumerate(("plan", "loss", "plan_step"))
    ],
)
def test_what_else_keeps_them_is_named(planned: str, kept: Callable[[], torch.Tensor], named: str) -> None:
    """And a step that ran before is what helps."""
    global SLOTS, ENDLESS
    SLOTS, ENDLESS = Slots(), endless()
    KEPT.clear()
    for place in (LOCAL, functional):
        vars(place).pop("kept" if place is LOCAL else "_kept", None)
    model = network() if planned == "loss" else Between(kept)

    def loss(out: torch.Tensor) -> torch.Tensor:
        return (out * kept() if planned == "loss" else out).square().mean()

    x = torch.randn(8, 64)

    def plan() -> object:
        return (
            mt.plan_step(model, (x,), loss, budget="100%")
            if planned == "plan_step"
            else mt.plan(model, (x,), budget="100%", loss=loss)
        )

    with pytest.raises(CaptureError, match=f"{named} keeps a tensor that was made while the step was looked at"):
        plan()
    SLOTS, ENDLESS = Slots(), endless()
    assert trains(model, loss)
    if planned != "plan_step":
        plan()
        assert trains(model, loss)
