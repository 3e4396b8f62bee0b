"""Steps whose operations run in another order than autograd's do the same, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import getitem
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import memsched as ms
from memsched.errors import ScheduleError
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.order import Turns
from memsched.torch.lanes import EmulatedLanes
from pytorch.graph_step_models import (
    QUICK,
    SPEED,
    Captured,
    captured,
    fresh,
    loss,
    plain_step,
    planned_step,
    schedules,
)
from pytorch.orders import ordered, orders, placed, random_order
from pytorch.steps import differences
from pytorch.test_graph_step_memory import check_bytes


@pytest.mark.parametrize("name", [*QUICK, pytest.param("resnet18", marks=pytest.mark.slow)])
def test_any_order_gives_the_same_step(name: str) -> None:
    check_orders(captured(name), 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_many_orders_give_the_same_step(name: str) -> None:
    check_orders(captured(name), 40)


def check_orders(c: Captured, many: int) -> None:
    want = plain_step(c)
    listed = [op["name"] for op in c.graph.ops]
    for seed, order in orders(c.graph, many):
        assert order != listed
        assert differences(want, planned_step(c, ordered(c.graph, order))) == [], seed


@pytest.mark.parametrize("name", ["dropout_mlp", "residual", "transformer"])
def test_any_order_holds_what_it_says(name: str) -> None:
    c = captured(name)
    for _, order in orders(c.graph, 2):
        schedule = ordered(c.graph, order)
        device = ms.Device(schedule.budget, SPEED)
        assert ms.simulate(c.graph, schedule, device).peak_memory == schedule.budget
        check_bytes(c, schedule)
        check_bytes(c, placed(c.graph, order))


@pytest.mark.parametrize("name", ["dropout_mlp", "residual"])
def test_any_order_in_rounds(name: str) -> None:
    c = captured(name, rounds=True)
    rounds = [[c.step.batch // 2, 2]]
    want = plain_step(c, [(c.step.batch // 2, 2)])
    for seed, order in orders(c.graph, 2):
        schedule = ms.Schedule.from_json({**ordered(c.graph, order).to_json(), "rounds": rounds})
        assert differences(want, planned_step(c, schedule)) == [], seed


# What an operation depends on without reading it.


def own(model: nn.Module, *args: Any) -> Captured:
    return Captured(model=model.train(), args=args, step=CapturedStep(model, args, loss))


class Draws(nn.Module):
    """Branches that draw random numbers in many ways, and do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x: Any) -> Any:
        a, b, c, d, e, f = (layer(x) for layer in self.layers)
        torch.rand(3)  # nobody reads it, and the generator goes on
        noisy = b + torch.randn_like(b) + torch.rand(6)
        return (
            F.dropout(a)
            + noisy
            + F.rrelu(c, training=True)
            + F.alpha_dropout(d, 0.3, training=True)
            + F.dropout(e * torch.bernoulli(torch.sigmoid(f.detach())), 0.2)
        )


class Twice(nn.Module):
    """A normalisation that has two turns, and a counter that is read and written."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.left, self.right = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("turns", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        both = self.norm(self.left(x)) * self.norm(self.right(x).tanh())
        self.turns += both.detach().mean()
        scaled = both * self.turns.sin()
        self.turns.mul_(0.5)
        return scaled + self.norm.running_mean


@pytest.mark.parametrize("model", [Draws, Twice])
def test_orders_of_what_changes_state(model: Callable[[], nn.Module]) -> None:
    check_orders(own(model(), torch.randn(5, 6)), 20)


@pytest.mark.parametrize("name", ["dropout_mlp", "transformer"])
def test_draws_keep_their_order(name: str) -> None:
    """They read a tensor without bytes that the draw before them writes; nothing else is in their way."""
    c = captured(name)
    draws = [k for k, operation in enumerate(c.step.program.operations) if operation.random]
    ops, size = c.graph.ops, {tensor["name"]: tensor["size"] for tensor in c.graph.tensors}
    for before, after in itertools.pairwise(draws):
        shared = set(ops[before]["writes"]) & set(ops[after]["reads"])
        assert any(size[tensor] == 0 for tensor in shared)
    order = random_order(c.graph, 1)
    first, second = (order.index(ops[k]["name"]) for k in draws[:2])
    order[first], order[second] = order[second], order[first]
    with pytest.raises(ScheduleError, match=":done"):
        c.runner(ordered(c.graph, order), EmulatedLanes())


def test_orders_of_planners_that_run_draws_again() -> None:
    """A draw that runs again finds that the one before it has run, or runs it again, too."""
    c = captured("transformer")
    random = {c.graph.ops[k]["name"] for k, operation in enumerate(c.step.program.operations) if operation.random}
    want = plain_step(c)
    again = 0
    for name, schedule in schedules(c, ("superneurons", "pooch"), (0.0, 0.2)):
        runs = [step["run"] for step in schedule.steps if step.get("run") in random]
        again += len(runs) - len(random)
        assert differences(want, planned_step(c, schedule)) == [], name
    assert again > 0


def test_steps_of_a_tensor_without_bytes() -> None:
    """It may travel like any other, and nothing happens."""
    c = captured("dropout_mlp")
    schedule = ordered(c.graph, [op["name"] for op in c.graph.ops])
    steps = list(schedule.to_json()["steps"])
    place = next(k for k, step in enumerate(steps) if step.get("free", "").endswith(":done"))
    token = steps[place]["free"]
    written = next(k for k, step in enumerate(steps) if "run" in step and token in writes(c, step["run"]))
    moves = [{"offload": token}, {"free": token}, {"prefetch": token, "after": [written + 1]}]
    longer = [*steps[: written + 1], *moves, *steps[written + 1 :]]
    edited = ms.Schedule.from_json({**schedule.to_json(), "steps": longer})
    assert differences(plain_step(c), planned_step(c, edited)) == []


def writes(c: Captured, name: str) -> list[str]:
    return next(op["writes"] for op in c.graph.ops if op["name"] == name)


_count = 0


@torch.library.custom_op("memsched_test::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    """What it gives depends on how often it ran, which no tensor says."""
    global _count
    _count += 1
    return x * _count


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


counted.register_autograd(lambda ctx, gradient: gradient * 2)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Any) -> Any:
        return sum(counted(layer(x)) for layer in self.layers)


def test_unknown_operations_keep_their_order() -> None:
    c = own(Counts(), torch.randn(3, 4))

    def step(run: Callable[[], Any]) -> Any:
        global _count
        _count = 0
        return run()

    def plain() -> Any:
        value = loss(c.model(*c.args))
        value.backward()
        return value

    want = fresh(lambda: step(plain), c.model)
    for seed, order in orders(c.graph, 10):
        runner = c.runner(ordered(c.graph, order), EmulatedLanes())
        assert differences(want, fresh(lambda run=runner: step(lambda: run.step(*c.args)), c.model)) == [], seed


def test_what_looks_at_an_input_through_another_result_comes_after_it() -> None:
    """An operation that gives back its input beside what it makes: who reads that input there reads nothing it made."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    both = graph.call_function(torch.ops.aten.sin.default, (x,))
    shown = graph.call_function(getitem, (both, 1))
    reader = graph.call_function(torch.ops.aten.cos.default, (shown,))
    turns = Turns({x: x, both: both, shown: both, reader: reader})
    assert turns.next(both, set()) == ()
    assert turns.next(reader, {-1}) == (0,)
