"""Buffers and inputs that a step changes: their values, versions and gradients are those of plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_compiled_models import identical
from torch import nn

from memsched.torch.compiled import function
from memsched.torch.compiled.wrapper import Around


class Changing(nn.Module):
    """`change` changes buffers or the input, and returns what is added to the result."""

    def __init__(self, change: Callable[[Changing, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last, self.change = nn.Linear(16, 16), nn.Linear(16, 16), change
        self.register_buffer("one", torch.randn(16))
        self.register_buffer("other", torch.randn(16))
        self.register_buffer("both", torch.randn(2, 16))
        self.register_buffer("count", torch.tensor(0))
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.first(x.clone()))
        return self.last(y) + self.change(self, x, y)


def swapped(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = net.one.clone()
    net.one.copy_(net.other)
    net.other.copy_(kept)
    return 0


def became_another(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    net.one.copy_(net.other)
    net.other.add_(1)
    return y * net.one


def normed(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    return net.norm(y).sin()


def counted(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    net.count += 1
    return y * net.count


def read_before_and_after(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    before = y * net.one.clone()
    net.one.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return before * (y * net.one).cos()


def without_gradients(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        net.one.lerp_(y.mean(0), 0.5)
    return y * net.one


def of_the_input(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(0.5)
    return x.sin() * y


def a_row(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    net.both[1].add_(y.detach().sum(0))
    return y * net.both[0] * net.both[1]


def returned(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    net.one.add_(1)
    return y + net.one


def of_a_parameter(net: Changing, x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        net.last.bias.add_(0.1)
    return net.one * y


CHANGES = [
    *(swapped, became_another, normed, counted, read_before_and_after, without_gradients),
    *(of_the_input, a_row, returned, of_a_parameter),
]


WAYS = [
    *({"budget": "20%", "device": "v100"}, {"budget": "100%", "device": "v100"}),
    pytest.param({"budget": "100%", "mode": "inductor"}, marks=pytest.mark.slow),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as Inductor is imported
@pytest.mark.parametrize("options", WAYS, ids=["20%", "100%", "inductor"])
@pytest.mark.parametrize("change", CHANGES, ids=[one.__name__ for one in CHANGES])
def test_what_changes_is_as_in_plain_pytorch(change: Any, options: dict[str, str]) -> None:
    same, close = (torch.allclose, {"rtol": 1e-4, "atol": 1e-5}) if "mode" in options else (identical, {})
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Changing(change)
    planned = copy.deepcopy(plain)
    run = torch.compile(planned, backend="memsched", options=options)
    for step in range(3):
        torch.manual_seed(step)
        given = torch.randn(32, 16)
        found = []
        for net, call in ((plain, plain), (planned, run)):
            net.zero_grad()
            x = given.clone()
            buffers = {"x": x, **dict(net.named_buffers())}
            before = {name: one._version for name, one in buffers.items()}
            result = call(x)
            result.square().sum().backward()
            changed = {name for name, one in buffers.items() if one._version > before[name]}
            gradients = [one.grad for one in net.parameters()]
            found.append(([result.detach(), *buffers.values(), *gradients, *net.parameters()], changed))
        (expected, told), (values, heard) = found
        assert told <= heard  # plain batch norms do not say that they change their statistics
        assert [one is None for one in expected] == [one is None for one in values]
        assert all(a is None or same(a, b, **close) for a, b in zip(expected, values, strict=True))


def test_changes_do_not_take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd's functions around a graph took a tenth of a small step with many buffers."""
    known: list[Around] = []
    made = function.function_of

    def noted(unit: Any, around: Around) -> Any:
        known.append(around)
        return made(unit, around)

    monkeypatch.setattr("memsched.torch.compiled.backend.function_of", noted)
    for change in (normed, read_before_and_after, of_the_input, swapped):
        torch._dynamo.reset()
        net = Changing(change)
        torch.compile(net, backend="memsched", options={"budget": "100%"})(torch.randn(32, 16)).sum().backward()
    assert [len(one.changed) for one in known] == [3, 1, 1, 2]


def test_a_head_that_nobody_uses_has_no_gradient_beside_buffers_that_change() -> None:
    torch._dynamo.reset()
    heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        y = net(x).relu()
        return [head(y) for head in heads]

    first, _ = torch.compile(both, backend="memsched", options={"budget": "100%"})(torch.randn(32, 16))
    first.sum().backward()
    assert heads[1].weight.grad is None
    assert heads[0].weight.grad is not None
    assert net[1].running_mean.abs().sum() > 0
