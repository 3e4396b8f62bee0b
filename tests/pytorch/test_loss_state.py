"""What a loss has of its own: a look leaves it as it was, and what its weights take is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import memsched.torch

BATCH, WIDTH = 8, 64


class Weighted:
    """A loss with weights, which the model does not know."""

    def __init__(self, outputs: int = 2048) -> None:
        self.layer = nn.Linear(WIDTH, outputs)

    def __call__(self, result: torch.Tensor) -> torch.Tensor:
        return self.layer(result).square().mean()


class Average(nn.Module):
    """A loss with a moving average, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))

    def forward(self, result: torch.Tensor) -> torch.Tensor:
        """Of the distance from it."""
        self.mean.mul_(0.9).add_(result.detach().mean(0), alpha=0.1)
        return (result - self.mean).square().mean()


class Plain:
    """The same, in an attribute."""

    def __init__(self) -> None:
        self.mean = torch.ones(WIDTH)

    def __call__(self, result: torch.Tensor) -> torch.Tensor:
        return Average.forward(self, result)  # type: ignore[arg-type] # has what it reads


def _fit(model: nn.Module, args: tuple[Any, ...], loss: Any, **more: Any) -> memsched.torch.Fit:
    asked = {"memory": "100MB", "largest": False, "time_limit": 0.1, **more}
    return memsched.torch.fit(model, args, loss=loss, **asked)


LOOKS: dict[str, Callable[..., Any]] = {
    "fit": _fit,
    "fit with the largest batch": lambda model, args, loss: _fit(model, args, loss, largest=True),
    "plan": lambda model, args, loss: memsched.torch.plan(model, args, budget="100MB", loss=loss),
    "plan_step": lambda model, args, loss: memsched.torch.plan_step(model, args, loss, budget="100MB"),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("kind", [Average, Plain])
def test_what_a_loss_counts_is_as_it_was(look: str, kind: Callable[[], Any]) -> None:
    """Its average decayed with each step that was looked at."""
    loss = kind()
    LOOKS[look](nn.Linear(WIDTH, WIDTH), (torch.randn(BATCH, WIDTH),), loss)
    assert type(loss.mean) is torch.Tensor
    assert torch.equal(loss.mean, torch.ones(WIDTH))


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("had", [False, True])
def test_weights_of_a_loss_keep_their_gradients(look: str, had: bool) -> None:
    """They had gradients without data, and with set_to_none=False they trained no more."""
    loss = Weighted()
    before = {one: torch.ones_like(one) if had else None for one in loss.layer.parameters()}
    for one, gradient in before.items():
        one.grad = gradient
    LOOKS[look](nn.Linear(WIDTH, WIDTH), (torch.randn(BATCH, WIDTH),), loss)
    assert all(one.grad is gradient for one, gradient in before.items())


def _bytes(tensors: Iterable[Any]) -> int:
    return sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor))


@pytest.mark.parametrize("whose", ["model", "both"])
def test_what_weights_of_a_loss_take_counts(whose: str) -> None:
    """Half of the peak was missing: their gradients, and the state that the optimiser has of them."""
    model, loss, given = nn.Linear(WIDTH, WIDTH), Weighted(), torch.randn(BATCH, WIDTH)
    weights = [*model.parameters(), *loss.layer.parameters()]
    optimizer = torch.optim.Adam(weights if whose == "both" else model.parameters(), foreach=False)
    found = _fit(model, (given,), loss, optimizer=optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(given)).backward()
        optimizer.step()
    state = _bytes(one for state in optimizer.state.values() for one in state.values())
    held = given.nbytes + state + _bytes(weights) + _bytes(one.grad for one in weights)
    assert found.steady.optimizer == state
    assert found.steady.parameters == _bytes(weights)
    assert held <= found.peak_memory <= held + 6 * loss.layer.weight.nbytes * (whose == "both") + 6 * 16_384


def test_the_gradient_that_an_input_keeps_counts_while_the_optimiser_steps() -> None:
    """A peak of 6.3 MB was told as 5.8."""
    model, given = nn.Linear(512, 512), torch.randn(256, 512, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with_gradient = _fit(model, (given,), lambda result: result.mean(), optimizer=optimizer)
    without = _fit(model, (given.detach(),), lambda result: result.mean(), optimizer=optimizer)
    assert with_gradient.steady.peak_update - without.steady.peak_update == given.nbytes
