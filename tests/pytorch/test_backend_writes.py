"""Forwards that write to what they read, and steps that fail before they begin."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from memsched.errors import InfeasibleError
from pytorch.odd_models import Odd, inputs, lin
from pytorch.test_compiled_models import WithStatistics, compared, gradients

CPU = torch.device("cpu")


def x(rows: int = 64, width: int = 32) -> torch.Tensor:
    return torch.randn(rows, width)


# What is written to


class Net(nn.Module):
    """Four layers, a buffer, and a forward that a subclass makes special."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.BatchNorm1d(32)
        self.register_buffer("shift", torch.full((32,), 0.5))
        self.weight = nn.Parameter(torch.eye(32))

    def run(self, given: Any) -> Any:
        for layer in self.layers:
            given = torch.tanh(layer(given))
        return given


class ReadEarlyWriteLate(Net):
    def forward(self, given: Any) -> Any:
        given = self.run(torch.tanh(self.layers[0](given) + self.shift))
        self.shift.copy_(given.detach().mean(0))
        return given


class WritesItsInput(Net):
    def forward(self, given: Any) -> Any:
        return self.run(given.mul_(2))


class ClampsAParameter(Net):
    def forward(self, given: Any) -> Any:
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return self.run(given @ self.weight)


class WritesBetween(Net):
    def forward(self, given: Any) -> Any:
        weight = self.weight + self.shift
        self.shift.add_(1)
        return self.run(given) @ weight


class NormalisesOften(Net):
    def forward(self, given: Any) -> Any:
        for layer in self.layers:
            given = torch.relu(self.norm(layer(given)))
        return given


class ReturnsViews(Net):
    def forward(self, given: Any) -> Any:
        return self.run(given), given.view(-1), self.weight.t()


class SavesANegativeView(Net):
    def forward(self, given: Any) -> Any:
        z = torch.complex(self.run(given), self.layers[0](given)).conj()
        return self.run(z.imag * z.real)


WRITING = (
    *(ReadEarlyWriteLate, WritesItsInput, ClampsAParameter, WritesBetween, NormalisesOften, ReturnsViews),
    SavesANegativeView,
)


@pytest.mark.parametrize("kind", [k if k in WRITING[2:4] else pytest.param(k, marks=pytest.mark.slow) for k in WRITING])
def test_forwards_that_write(kind: type[Net]) -> None:
    def scenario(model: nn.Module, run: Any) -> list[Any]:
        found = []
        for _ in range(2):
            given = x()
            outputs = run(given)
            first = outputs[0] if isinstance(outputs, tuple) else outputs
            first.square().sum().backward()
            found += [given, first.detach()]
        return [*found, *gradients(model), *model.buffers(), *(p.detach() for p in model.parameters())]

    compared(scenario, kind)


# After a capture that failed


def leaves_grad_off(self: Any, given: Any) -> Any:
    torch.set_grad_enabled(False)
    raise ValueError("as if the user had made a mistake")


def raises(self: Any, given: Any) -> Any:
    self.aux = given
    raise KeyError("as if the user had made a mistake")


def seeds(self: Any, given: Any) -> Any:
    torch.manual_seed(5)
    raise IndexError("as if the user had made a mistake")


def trained() -> list[torch.Tensor]:
    """Another model, trained plainly, with random numbers of all kinds."""
    torch.manual_seed(11)
    random.seed(11)
    np.random.seed(11)
    model = nn.Sequential(lin(), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.GELU(), lin())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(inputs()) * random.random() * float(np.random.rand())).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("middle", [leaves_grad_off, raises, seeds])
def test_a_forward_that_fails_fails_as_it_does_plainly(middle: Any) -> None:
    wanted = trained()
    torch.manual_seed(0)
    plain = Odd(middle)
    planned = copy.deepcopy(plain)
    said, states = [], []
    for call in (plain, torch.compile(planned, backend="memsched", options={"budget": "100%"})):
        with torch.set_grad_enabled(True):
            torch.manual_seed(0)
            with pytest.raises((ValueError, KeyError, IndexError)) as caught:
                call(inputs())
            said.append((caught.type, str(caught.value)))
            states.append((torch.is_grad_enabled(), torch.initial_seed()))
    assert said[0] == said[1]
    assert states[0] == states[1]
    assert all(map(torch.equal, wanted, trained()))


def test_a_budget_that_is_too_small_leaves_a_model_that_trains() -> None:
    torch.manual_seed(0)
    plain = WithStatistics()
    planned = copy.deepcopy(plain)
    given, before = x(), torch.get_rng_state()
    run = torch.compile(planned, backend="memsched", options={"budget": 1})
    with pytest.raises(InfeasibleError, match="too small for the step") as caught:
        run(given)
    assert torch.equal(before, torch.get_rng_state())
    assert all(map(torch.equal, plain.buffers(), planned.buffers()))
    assert all(p.grad is None for p in planned.parameters())
    torch._dynamo.reset()
    run = torch.compile(planned, backend="memsched", options={"budget": caught.value.min_memory})
    for call in (plain, run):
        torch.manual_seed(1)
        call(given).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), planned.parameters(), strict=True))
