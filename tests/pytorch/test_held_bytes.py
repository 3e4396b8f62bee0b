"""All that a planned step has allocated: gradients that autograd copies, and what graphs within operations hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as higher_order_map
from torch._higher_order_ops.while_loop import while_loop

import memsched.torch as mt
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.held import Memory
from memsched.torch.compiled.private import FREED
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


def pieces(model: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = higher_order_map(lambda row: large(row.unsqueeze(0)) * torch.ones(64, 1), model.linear(x))
    return found.square().mean()


def pieces_of_weights(model: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = higher_order_map(lambda row: (row @ model.linear.weight).tanh(), x)
    return found.square().mean()


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
WITHIN = {one.__name__: one for one in (branch, branch_without_gradient, loop, pieces, pieces_of_weights)}


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


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as Inductor is imported
@pytest.mark.parametrize(("mode", "given"), [("eager", False), ("eager", True), ("inductor", True)])
def test_gradients_of_tensors_that_are_no_parameters(given: bool, mode: str) -> None:
    """Autograd copies these, too, where several are one."""
    weights = [torch.randn(64, 256, requires_grad=True) for _ in range(4)]

    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ (weights[0] + weights[1] + weights[2] + weights[3])).mean()

    def of_all(x: torch.Tensor, *all_of_them: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ sum(all_of_them[1:], all_of_them[0])).mean()

    x = torch.randn(8, 64)
    run = torch.compile(of_all if given else own, backend="memsched", options={"budget": "100%", "mode": mode})

    def step() -> None:
        run(x, *(weights if given else ())).backward()

    for _ in range(2):
        step()
        for one in weights:
            one.grad = None
    plan = plans()[-1]
    allocated = plan.process_bytes(allocator_peak(step))
    assert allocated >= 2 * 4 * 64 * 256 * 4
    assert allocated <= plan.result.schedule.budget + SMALL
    assert plan.peak_memory <= 1.05 * allocated


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # PyTorch shows none
def test_a_batch_in_parts_whose_input_needs_a_gradient() -> None:
    """The gradient of each part is as large as the whole input, beside that of the input."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
    x = torch.randn(2 * 521, 64, requires_grad=True)  # few numbers of parts
    plan = mt.plan_step(net, (x,), lambda out: out.square().mean(), budget="10%", rounds=True)
    assert len(plan.result.schedule.rounds) > 1 or plan.result.schedule.rounds[0][1] > 1
    plan.step(x)
    for one in (x, *net.parameters()):
        one.grad = None
    held = x.nbytes + sum(one.nbytes for one in net.parameters())
    assert held + allocator_peak(lambda: plan.step(x)) <= plan.result.schedule.budget + SMALL


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as Inductor is imported
def test_gradients_that_arrive_count_to_the_end_where_pytorch_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.12 does; here every release counts as it does."""
    x, peaks = torch.randn(64, 16), {}
    for freed in (True, False):
        for module in ("as_graph", "halves"):
            monkeypatch.setattr(f"memsched.torch.compiled.{module}.FREED", freed)
        layers = (nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 16))
        model = nn.Sequential(*layers)  # whose peak is at the second layer's gradient
        plan = mt.plan(model, (x,), budget="100%", bandwidth=0)
        if FREED or not freed:  # where this release holds none, a plan that counts some has room
            assert plan.verify(model, (x,)).peak_memory <= plan.result.peak_memory
        options = {"budget": "100%", "mode": "inductor", "time_limit": 5 + freed}
        torch.compile(model, backend="memsched", options=options)(x).sum().backward()
        peaks[freed] = plan.result.peak_memory, plans()[-1].peak_memory
    assert [held - given for held, given in zip(peaks[False], peaks[True], strict=True)] == 2 * [x.nbytes]


def test_an_address_that_is_used_again_is_other_memory() -> None:
    """Steps of two graphs were planned anew now and then: what the first had returned was gone, and its place taken."""
    memory = Memory()
    for _ in range(100):
        one = torch.zeros(100)
        assert memory.bytes_beside([one]) == one.nbytes
        memory.add([one])
        assert memory.bytes_beside([one[:7]]) == 0
        del one
