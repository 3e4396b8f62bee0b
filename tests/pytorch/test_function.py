"""Graphs that need nothing of AOTAutograd when they run are called without it, and autograd sees them as before."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from memsched.torch.compiled.groups import _GROUPS

DIRECT, TRACED = "CapturedBackward", "CompiledFunctionBackward"


class Several(nn.Module):
    """Several results: a view, a number without a gradient, one of another shape; and what they need."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
        hidden = torch.tanh(self.first(x) * scale)
        return self.last(hidden), hidden.argmax(-1), hidden.square().mean()


class Counting(nn.Module):
    """It changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.tanh(self.layer(x))


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, backend="memsched", options={"budget": "100%", **options})


@pytest.mark.parametrize("batch", [(4,), (4, 3)])
@pytest.mark.parametrize("used", [(0, 2), (0,), (2,)])
def test_results_and_gradients_are_those_of_plain_pytorch(batch: tuple[int, ...], used: tuple[int, ...]) -> None:
    plain = Several()
    planned = copy.deepcopy(plain)
    x, scale = torch.randn(*batch, 16), torch.randn(16)
    found = []
    for model, run in ((plain, plain), (planned, compiled(planned))):
        inputs = x.clone().requires_grad_(), scale.clone().requires_grad_()
        for _ in range(2):
            results = run(*inputs)
            assert [one.requires_grad for one in results] == [True, False, True]
            sum(results[k].sin().sum() for k in used).backward()
        found.append([*results, *(one.grad for one in (*inputs, *model.parameters()))])
    assert results[0].grad_fn.name() == DIRECT
    assert not results[0]._is_view()
    for a, b in zip(*found, strict=True):
        assert a is b is None or torch.equal(a, b)


def test_what_needs_aotautograd_runs_by_it() -> None:
    """Views of inputs, and hooks that keep what is saved; no longer buffers that change."""
    x, model = torch.randn(4, 16), Counting()
    assert compiled(model)(x).grad_fn.name() == DIRECT
    assert model.calls == 1
    viewed = torch.compile(lambda x: (x.sin(), x[0]), backend="memsched", options={"budget": "100%"})
    assert viewed(x.requires_grad_())[0].grad_fn.name() == TRACED
    x = x.detach()
    plain = compiled(Several())
    inputs = x, torch.ones(16)
    for _ in range(2):
        assert plain(*inputs)[2].grad_fn.name() == DIRECT
        with saved_tensors_hooks(lambda one: one, lambda one: one):
            assert plain(*inputs)[2].grad_fn.name() == TRACED


@pytest.mark.filterwarnings("ignore:the last step exceeded the budget")  # by a second backward
def test_a_backward_may_run_twice_and_a_step_that_is_dropped_ends() -> None:
    model = Several()
    run, (x, scale) = compiled(model), (torch.randn(4, 16), torch.ones(16))
    loss = run(x, scale)[2]
    loss.backward(retain_graph=True)
    (group,) = _GROUPS.values()
    assert len(group.due) == 1
    once = [one.grad.clone() for one in model.first.parameters()]
    loss.backward()
    assert not group.due
    assert all(torch.equal(one.grad, 2 * before) for one, before in zip(model.first.parameters(), once, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    kept = run(x, scale)
    assert len(group.due) == 1
    del kept
    gc.collect()
    assert not group.due


def test_what_changes_between_forward_and_backward_is_named() -> None:
    model = Several()
    loss = compiled(model)(torch.randn(4, 16), torch.ones(16))[2]
    with torch.no_grad():
        model.first.weight.mul_(1)
        model.last.weight.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_backward_that_cannot_run_as_traced_is_refused() -> None:
    model = Several()
    run = compiled(model)
    loss = run(torch.randn(4, 16), torch.ones(16))[2]
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            loss.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    loss.backward()


class Plus(nn.Module):
    """Its backward returns the gradient that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.ones(6, 8))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return given + self.more


class Saved(torch.autograd.Function):
    """Its backward returns what it saved."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given, weight)
        return given * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(ctx.saved_tensors)


class Scaled(nn.Module):
    """With a weight that is its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 8))

    def forward(self, given: torch.Tensor) -> Any:
        """By this function."""
        return Saved.apply(given, self.weight)


@pytest.mark.parametrize("wants", [True, False])
def test_a_backward_that_is_recorded_leaves_what_it_was_given(wants: bool) -> None:
    """Autograd took it for a result: it was a leaf no more, and a later backward was one through the compiled step."""
    run = compiled(Plus())
    given, arriving = torch.ones(6, 8, requires_grad=True), torch.ones(6, 8, requires_grad=wants)
    torch.autograd.grad(run(given), [given], arriving, create_graph=True)
    assert (arriving.is_leaf, arriving.requires_grad) == (True, wants)
    if wants:
        (arriving * 3).sum().backward()
        assert torch.equal(arriving.grad, torch.full((6, 8), 3.0))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo's own
def test_a_backward_that_is_recorded_leaves_parameters() -> None:
    model = Scaled()
    run, given = compiled(model), torch.ones(6, 8, requires_grad=True)
    torch.autograd.grad(run(given).sum(), [given, model.weight], create_graph=True)
    assert model.weight.is_leaf
    assert given.is_leaf
    torch.optim.SGD(model.parameters(), lr=0.1).step()


class Viewed(nn.Module):
    """Its result is a view of what its backward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """In two rows."""
        return torch.tanh(self.layer(given)).view(2, -1)


def test_a_result_that_is_changed_before_the_backward_that_reads_it_is_named() -> None:
    """As in plain PyTorch. AOTAutograd does not notice, and the gradients were wrong without a word."""
    model, given = Viewed(), torch.ones(6, 8)
    for run in (model, compiled(model)):
        result = run(given)
        result.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    run(given).sum().backward(retain_graph=True)


def test_a_backward_is_over_though_it_is_interrupted() -> None:
    """Ctrl-C before any line of what counts it: nothing stays due."""
    run, inputs = compiled(Several()), (torch.randn(4, 16), torch.ones(16))
    lines: set[int] = set()
    for _ in range(4):
        due = run(*inputs)[2].grad_fn.due
        (group,) = _GROUPS.values()
        assert group.due

        def interrupt(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_name == "over" and event == "line" and frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            due.over()
        sys.settrace(before)
        del due
        gc.collect()
        assert not group.due
    assert len(lines) == 2
