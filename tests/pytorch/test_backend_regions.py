"""Regions that are compiled once, operators with tokens, tensors without storage: planned, or named."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.compiler import nested_compile_region
from torch.nn import functional

import memsched.torch as mt
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.errors import CaptureError
from pytorch.test_compiled_models import made_since

X = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))


@nested_compile_region
def region(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight).tanh()


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = region(x, self.weight)
        return x.square().mean()


def test_regions_are_planned_as_what_is_in_them() -> None:
    """They ended in a KeyError."""
    torch.manual_seed(0)
    model = Regions()
    twin = copy.deepcopy(model)
    for _ in range(2):
        twin(X).backward()
        known = plans()
        loss = torch.compile(model, backend="memsched", options={"budget": "60%"})(X)
        loss.backward()
        assert made_since(known)
        assert torch.equal(loss, twin(X).detach())
        assert model.weight.grad is not None
        assert twin.weight.grad is not None
        assert torch.equal(model.weight.grad, twin.weight.grad)
    plan = mt.plan(model, (X,), budget="60%")
    assert plan.result.recomputed
    plan.verify(model, (X,))


@torch.library.custom_op("memsched_tests::ordered", mutates_args=())
def ordered(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@ordered.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


ordered.register_autograd(lambda ctx, gradient: gradient.clone())


class Ordered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(ordered(self.first(x)).tanh()).exp().mean()
        return found


def test_an_operator_with_a_token_is_named() -> None:
    """The token was saved for the backward, where only tensors may be."""
    _register_effectful_op(torch.ops.memsched_tests.ordered.default, _EffectType.ORDERED)
    torch.manual_seed(0)
    model = Ordered()
    expected = model(X)
    with pytest.warns(UnplannedWarning, match=r"memsched_tests.ordered.default runs in order with others by a token"):
        found = torch.compile(model, backend="memsched", options={"budget": "80%"})(X)
    found.backward()
    assert torch.equal(found, expected)


class WithoutStorage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x).to_mkldnn().to_dense().mean()
        return found


@pytest.mark.parametrize(
    "work", [lambda model: mt.plan(model, (X,), budget="100%"), lambda model: mt.profile(model, (X,))]
)
def test_tensors_without_storage_are_named(work: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(CaptureError, match="WithoutStorage makes tensors without storage"):
        work(WithoutStorage())


def test_a_plan_can_be_pickled_and_applied() -> None:
    """The set of models that it was applied to could not."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    plan = mt.plan(model, (X,), budget="60%")
    expected = model(X)
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other.result.schedule == plan.result.schedule
        other.apply(model)
        assert torch.equal(model(X), expected)
        other.remove()


def test_a_comparison_leaves_no_plan_behind() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
    before = plans()
    mt.plan(model, (X,), budget="100%").verify(model, (X,))
    assert not made_since(before)
