"""Whole steps: the optimiser's updates are operations of the plan, and its states travel."""

from __future__ import annotations

import copy
import logging
import threading
from typing import Any

import pytest
import torch
from torch import nn
from updating import (
    V100,
    Make,
    Sharing,
    Tied,
    cnn,
    counted_of,
    loss,
    mlp,
    of_class,
    plain_step,
    planned,
    same,
    trains_alike,
)

import memsched as ms
import memsched.torch as mt
from memsched.errors import InvalidInputError
from memsched.torch.steady import steady

TOGETHER = ("LBFGS", "SparseAdam")
CLASSES = sorted(
    name
    for name, one in vars(torch.optim).items()
    if isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "AdamW" else pytest.mark.slow) for n in CLASSES])
def test_every_optimizer_trains_as_ever_or_is_refused(name: str) -> None:
    """Those of torch.optim, which a new release may add to."""
    if name in TOGETHER:
        with pytest.raises(InvalidInputError, match=f"optimizer is {name}, whose updates may depend on each other"):
            planned(mlp(), torch.randn(8, 24), of_class(name)(mlp().parameters()))
        return
    stepped = name == "Adafactor"  # which asks for values, so that its first step cannot be looked at
    plan = trains_alike(mlp(), torch.randn(8, 24), of_class(name), stepped=stepped)
    states = [one for one in plan.result.graph.tensors if one["role"] == "persistent" and one["size"]]
    assert states or name == "Adafactor"  # its states are small
    assert plan.result.timeline.bytes_out > 0 or name == "Adafactor"


@pytest.mark.parametrize(
    ("budget", "link"),
    [
        ("0%", "12GB/s"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("0%", 0), ("60%", 0), ("60%", "12GB/s"), ("100%", 0))
        ),
    ],
)
def test_a_cnn_with_dropout_and_statistics(budget: str, link: Any) -> None:
    trains_alike(cnn(), torch.randn(4, 3, 8, 8), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), budget, link)


def test_tied_frozen_and_unused_weights() -> None:
    trains_alike(Tied(), torch.randint(0, 40, (4, 8)), lambda p: torch.optim.AdamW(p, lr=0.01))


@pytest.mark.slow
def test_weights_in_half_precision() -> None:
    trains_alike(mlp().bfloat16(), torch.randn(8, 24).bfloat16(), lambda p: torch.optim.Adam(p, lr=0.01))


@pytest.mark.parametrize("foreach", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_optimizer_may_write_to_gradients(foreach: bool) -> None:
    """PyTorch's foreach=True with nesterov=True adds to them in place; others read what is one gradient for several."""
    trains_alike(
        Sharing(),
        torch.randn(8, 6),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=foreach),
        "100%",
        link=0,
    )


@pytest.mark.slow
def test_a_loss_with_weights_of_its_own() -> None:
    model, x = mlp(), torch.randn(8, 24)
    head = nn.Linear(24, 3)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=torch.tensor(0.01))
    other, other_head = copy.deepcopy(model), copy.deepcopy(head)
    plain = torch.optim.AdamW([*other.parameters(), *other_head.parameters()], lr=torch.tensor(0.01))
    plan = mt.plan_step(
        model, (x,), lambda out: loss(head(out)), budget="50%", device=V100, optimizer=optimizer, update=True
    )
    for _ in range(3):
        plan.step(x)
        loss(other_head(other(x))).backward()
        plain.step()
        plain.zero_grad()
        same(model, other, optimizer, plain)
        same(head, other_head, optimizer, plain)
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget


def test_groups_and_a_scheduler() -> None:
    """Each group has its options, which a scheduler changes; what is in no group keeps its gradient."""

    def make(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
        first, second, *_ = model.children()
        groups = [{"params": first.parameters(), "lr": 0.5}, {"params": second.parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    (optimizer, scheduler), (plain, plain_scheduler) = make(model), make(other)
    plan = planned(model, x, optimizer)
    for _ in range(3):
        plan.step(x)
        scheduler.step()
        loss(other(x)).backward()
        plain.step()
        plain.zero_grad()
        plain_scheduler.step()
        same(model, other, optimizer, plain)
    assert model[3][0].weight.grad is not None


def test_a_scheduler_may_come_after_the_plan() -> None:
    """It adds values to the groups, which are no options that were switched on."""
    model, x = mlp(), torch.randn(8, 24)
    other = copy.deepcopy(model)
    optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, other))
    plan = planned(model, x, optimizer)
    first, second = (torch.optim.lr_scheduler.OneCycleLR(one, max_lr=0.2, total_steps=9) for one in (optimizer, plain))
    for _ in range(3):
        assert torch.equal(plan.step(x), plain_step(other, x, plain))
        first.step()
        second.step()
        same(model, other, optimizer, plain)


def test_another_learning_rate_takes_the_same_plan() -> None:
    """What an update needs was asked for anew while PyTorch compiled, when optimisers take other formulas."""
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(model.parameters())
    plan = planned(model, x, optimizer, "50%", update_on_host="1 GB/s")
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5)
    torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)  # which adds an option
    assert plan.verify(x).peak_memory <= plan.result.schedule.budget


def test_two_threads_train_a_model_each() -> None:
    """They share the copies of the device.

    While Dynamo compiles in one thread, which it may do again at any time, AdamW takes another formula in all.
    """
    compiled: list[object] = [None]
    for _ in range(10):
        if compiled:
            torch._dynamo.reset()
            compiled.clear()
            trained, plains, xs, optimizers = _trained_in_two_threads(compiled)
    assert not compiled  # in ten tries
    for model, other, x, optimizer in zip(trained, plains, xs, optimizers, strict=True):
        plain = torch.optim.AdamW(other.parameters())
        for _ in range(61):
            plain_step(other, x, plain)
        same(model, other, optimizer, plain)


def _trained_in_two_threads(compiled: list[object]) -> tuple[Any, ...]:
    models = [mlp(6) for _ in range(2)]
    xs = [torch.randn(8, 24) for _ in models]
    plains = [copy.deepcopy(one) for one in models]
    optimizers = [torch.optim.AdamW(one.parameters()) for one in models]
    plans = [planned(*one) for one in zip(models, xs, optimizers, strict=True)]
    for plan, x in zip(plans, xs, strict=True):
        plan.step(x)
    failed: list[BaseException] = []

    def train(plan: mt.StepPlan, x: torch.Tensor) -> None:
        try:
            for _ in range(60):
                plan.step(x)
        except BaseException as error:  # of any kind: the thread ends
            failed.append(error)

    threads = [threading.Thread(target=train, args=one) for one in zip(plans, xs, strict=True)]
    torch._dynamo.callback_handler.register_start_callback(compiled.append)
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed
    return models, plains, xs, optimizers


LOG = logging.getLogger("telling")


class Telling(nn.Module):
    """Calls a logger, as models of transformers do: PyTorch breaks its graph there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.inner[0](x)
        LOG.warning("on the way")
        return self.inner[1:](x)


def test_a_call_of_a_logger_does_not_break_the_step() -> None:
    model, x = Telling(), torch.randn(8, 24)
    plan = planned(model, x, torch.optim.AdamW(model.parameters()))
    assert plan.plan.visits == 1
    assert plan.verify(x).reordered is None


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)])
def test_the_executed_step_holds_the_least_peak_of_any_order(make: Make) -> None:
    """At batch 1, where gradients and states are most of the memory."""
    model, x = cnn(), torch.randn(1, 3, 8, 8)
    optimizer = make(model.parameters())
    at_ease = planned(model, x, optimizer, "100%", link=0)
    least = ms.order(at_ease.problem)
    assert least.optimal
    plan = planned(model, x, optimizer, least.peak_memory, link=0)
    assert plan.peak_memory <= least.peak_memory
    assert 0.99 * counted_of(plan) <= plan.verify(x).peak_memory <= least.peak_memory
    every = steady(model, (x,), {}, optimizer, loss)
    assert plan.peak_memory < max(every.peak_forward_backward, every.peak_update)
