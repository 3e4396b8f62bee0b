"""What surrounds the call of a planned model: it is honoured as by plain autograd, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import memsched.torch as mt
from memsched.errors import MemschedError


class Layers(nn.Module):
    """With a branch on values it is planned with hooks for saved tensors, else in stages."""

    def __init__(self, branches: bool) -> None:
        super().__init__()
        self.first, self.last, self.branches = nn.Linear(8, 8), nn.Linear(8, 8), branches

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        if self.branches and x.sum() > 1e9:
            x = x * 2
        return torch.tanh(self.last(x))


class Doubled(TorchFunctionMode):
    """Linear layers give twice what they gave."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = function(*args, **(kwargs or {}))
        return value * 2 if function is torch.nn.functional.linear else value


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def applied(branches: bool, x: torch.Tensor) -> tuple[Any, Any]:
    """A planned model and a plain one."""
    torch.manual_seed(0)
    model = Layers(branches)
    plain = copy.deepcopy(model)
    if branches:
        with pytest.warns(UserWarning, match="saved-tensor hooks"):
            plan = mt.plan(model, (x,), budget="50%", device="v100:pcie3")
    else:
        plan = mt.plan(model, (x,), budget="50%", device="v100:pcie3")
    return plan.apply(model), plain


def same_step(model: Any, plain: Any, x: torch.Tensor) -> bool:
    for one in (model, plain):
        one(x).sum().backward()
    return all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def forward_mode(model: Any, x: torch.Tensor) -> None:
    with forward_ad.dual_level():
        model(forward_ad.make_dual(x, x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize(
    "transform",
    [
        lambda model, x: torch.vmap(model)(torch.stack([x, x])),
        lambda model, x: torch.func.grad(lambda given: model(given).sum())(x),
        lambda model, x: torch.func.jvp(model, (x,), (x,)),
        forward_mode,
    ],
    ids=["vmap", "grad", "jvp", "forward_mode"],
)
def test_transforms_of_functions_are_refused(branches: bool, transform: Any, x: torch.Tensor) -> None:
    model, plain = applied(branches, x)
    with pytest.raises(MemschedError, match=r"torch\.func or with forward-mode"):
        transform(model, x)
    assert same_step(model, plain, x)


@pytest.mark.parametrize("branches", [False, True])
def test_hooks_of_the_caller_that_change_what_they_keep_are_refused(branches: bool, x: torch.Tensor) -> None:
    model, plain = applied(branches, x)
    with (
        pytest.raises(MemschedError, match="saved_tensors_hooks of its caller"),
        saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float),
    ):
        model(x)
    with pytest.raises(MemschedError, match=r"such as those of torch\.utils\.checkpoint"):
        checkpoint(model, x, use_reentrant=False)  # it would run the model again, and its writes to buffers
    with save_on_cpu():
        assert same_step(model, plain, x)


@pytest.mark.parametrize("branches", [False, True])
def test_a_mode_that_changes_functions_is_honoured_or_refused(branches: bool, x: torch.Tensor) -> None:
    model, plain = applied(branches, x)
    around: Callable[[], AbstractContextManager[Any]] = Doubled
    with around():
        if branches:  # the own forward runs
            assert same_step(model, plain, x)
        else:
            with pytest.raises(MemschedError, match="TorchFunctionMode"):
                model(x)
    model.zero_grad()
    plain.zero_grad()
    assert same_step(model, plain, x)


@pytest.mark.parametrize("training", [False, True])
def test_another_forward_of_the_class_counts_at_once(
    training: bool, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, plain = applied(True, x)
    before = Layers.forward
    monkeypatch.setattr(Layers, "forward", lambda self, given: before(self, given) * 3)
    assert torch.equal(model.train(training)(x), plain.train(training)(x))


@pytest.mark.parametrize("branches", [False, True])
def test_a_compiled_caller_trains_as_planned(branches: bool, x: torch.Tensor) -> None:
    model, plain = applied(branches, x)
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        compiled(x).sum().backward()
        plain(x).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
