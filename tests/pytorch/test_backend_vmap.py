"""Backwards that vmap computes for many gradients at once, and tensors whose sizes are known only while they run."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import memsched as ms
import memsched.torch as mt

MANY = torch.eye(12).view(12, 3, 4)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCHED_CACHE", "")
    torch._dynamo.reset()


def gradients(between: nn.Module, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), between, nn.Linear(4, 4))
    run = torch.compile(model, backend="memsched", options=options) if options else model
    x = torch.randn(3, 4, requires_grad=True)
    (found,) = torch.autograd.grad(run(x), x, MANY, is_grads_batched=True)
    return found


def test_many_gradients_at_once_are_right_or_named() -> None:
    assert torch.equal(gradients(nn.Tanh(), budget="100%"), gradients(nn.Tanh()))
    for between, options in (
        (nn.Dropout(0.5), {"budget": "100%"}),
        (nn.Tanh(), {"budget": "0%", "bandwidth": "1GB/s"}),
    ):
        with pytest.raises(ms.MemschedError, match="one gradient at a time"):
            gradients(between, **options)


@pytest.mark.parametrize("mode", ["eager", "inductor"])
def test_tensors_that_consist_of_others_run_without_a_plan(mode: str) -> None:
    """Their gradients did not count, and a class that holds other objects ended in raw errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    for one in model:
        for name, value in list(one.named_parameters()):
            setattr(one, name, nn.Parameter(TwoTensor(value.detach().clone(), value.detach() * 0.9)))
    x = torch.randn(8, 16)
    with pytest.warns(UserWarning, match="tensors of the class TwoTensor"):
        found = torch.compile(model, backend="memsched", options={"budget": "100%", "mode": mode})(x)
    found.sum().backward()
    got = [one.grad.a.clone() for one in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, one.grad.a) for a, one in zip(got, model.parameters(), strict=True))


def test_nested_tensors_run_without_a_plan() -> None:
    layer = nn.Linear(16, 16)
    x = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)], layout=torch.jagged)
    want = layer(x).values()
    with pytest.warns(UserWarning, match="tensors of the class NestedTensor"):
        found = torch.compile(layer, backend="memsched", options={"budget": "100%"})(x).values()
    found.sin().sum().backward()
    assert torch.equal(found, want)
    assert layer.weight.grad is not None


def test_a_loop_of_pytorch_is_planned_while_it_trains() -> None:
    from torch._higher_order_ops import while_loop

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            state = torch.tensor(0), x
            return self.last(while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 0.9 + 0.1), state)[1])

    model, x = Loop(), torch.randn(8, 16)
    with pytest.raises(mt.CaptureError, match="has a while_loop"):
        mt.plan(model, (x,), budget="100%")
    found = torch.compile(model, backend="memsched", options={"budget": "100%"})(x)
    found.sum().backward()
    assert torch.equal(found, model(x))


@pytest.mark.slow
def test_threads_share_the_copies_of_a_device() -> None:
    """Each waited for copies that the other carried out meanwhile."""
    x, options = torch.randn(8, 8), {"budget": "30%", "bandwidth": "1GB/s"}
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(3)]
    models = [torch.compile(one, backend="memsched", options=options) for one in layers]
    wrong: list[str] = []

    def train(model: Any, plain: nn.Module) -> None:
        for _ in range(200):
            (found,) = torch.autograd.grad(model(x).sin().mean(), [plain[0].weight])
            (want,) = torch.autograd.grad(plain(x).sin().mean(), [plain[0].weight])
            if not torch.equal(found, want):
                wrong.append("a gradient")

    def trained(model: Any, plain: nn.Module) -> None:
        try:
            train(model, plain)
        except Exception as error:
            wrong.append(repr(error))

    for model in models:
        model(x).sin().mean().backward()
    threads = [threading.Thread(target=trained, args=pair) for pair in zip(models, layers, strict=True)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_numbers_of_numpy_are_options() -> None:
    model, x = nn.Linear(16, 16), torch.randn(64, 16)
    plans = [mt.plan(model, (x,), budget=budget) for budget in (50_000, np.int64(50_000), np.float32(50_000.0))]
    assert len({plan.peak_memory for plan in plans}) == 1
    with pytest.raises(ms.InvalidInputError, match="optimizer is "):
        torch.compile(model, backend="memsched", options={"budget": "100%", "optimizer": []})(x)
