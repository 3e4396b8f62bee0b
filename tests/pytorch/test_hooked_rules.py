"""The rules of autograd under hooks for saved tensors: what works, what is refused, and what is left behind."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from typing import Any

import pytest
import torch

from memsched.errors import MemschedError
from memsched.torch.hooked.forward import HookedForward
from memsched.torch.lanes import EmulatedLanes
from memsched.torch.meter import Meter
from pytorch.hooked_models import CPU, branching, gradients, planned, same
from pytorch.steps import copies


def test_changes_in_place_of_what_is_saved_are_errors_as_in_autograd() -> None:
    model, args = branching()
    plan = planned(model, args)
    plan.apply(model)
    loss = model(*args).square().mean()
    with torch.no_grad():
        model.last[1].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    del loss
    plan.remove()

    def change(module: Any, given: Any, result: Any) -> None:
        given[0].mul_(2)  # which the layer has saved

    model.first[2].register_forward_hook(change)
    for with_plan in (False, True):
        if with_plan:
            plan.apply(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the step differs: the hook is new
            loss = model(*args).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_second_derivatives_are_refused() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    result = model(*args).sum()
    with pytest.raises(MemschedError, match="no second derivatives"):
        torch.autograd.grad(result, list(model.parameters()), create_graph=True, allow_unused=True)


def test_a_graph_may_be_kept_for_more_backwards() -> None:
    model, args = branching()
    want = gradients(model, args)
    plan = planned(model, args)
    plan.apply(model)
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(*args).square().mean()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() if p.grad is not None else None for p in model.parameters()]
    assert same(want[1:], first)
    loss.backward()
    assert all(g is None or torch.equal(p.grad, g + g) for g, p in zip(first, model.parameters(), strict=True))


def test_a_partial_backward_may_come_first() -> None:
    model, args = branching()
    want = gradients(model, args)
    planned(model, args).apply(model)
    model.zero_grad()
    loss = model(*args).square().mean()
    torch.autograd.grad(loss, model.last[2].weight, retain_graph=True)
    loss.backward()
    assert same(want[1:], [p.grad for p in model.parameters()])


def test_one_step_at_a_time() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    first = model(*args)
    with pytest.raises(MemschedError, match="waits for its backward"):
        model(*args)
    first.sum().backward(retain_graph=True)
    model(*args).sum().backward()
    del first
    model(*args)  # dropped at once: nothing waits
    model(*args).sum().backward()


def test_a_graph_kept_beyond_the_next_forward_is_refused() -> None:
    model, args = branching()
    planned(model, args).apply(model)
    first = model(*args).sum()
    torch.autograd.grad(first, model.last[2].weight, retain_graph=True)
    second = model(*args).sum()
    with pytest.raises(MemschedError, match="another forward has taken the place"):
        first.backward()
    second.backward()


def test_an_error_in_the_forward_leaves_the_model_usable() -> None:
    model, args = branching()
    want = gradients(model, args)
    planned(model, args).apply(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(3, 31))
    assert same(gradients(model, args), want)


def test_the_model_stays_what_it_was() -> None:
    model, args = branching()
    keys, want = list(model.state_dict()), gradients(model, args)
    plan = planned(model, args)
    assert plan.apply(model) is model
    assert list(model.state_dict()) == keys
    with torch.no_grad():
        assert not model(*args).requires_grad
    assert torch.equal(model.eval()(*args), want[0])
    model.train()
    assert same(gradients(copy.deepcopy(model), args), want)
    with pytest.raises(MemschedError, match="cannot be pickled"):
        pickle.dumps(model)
    plan.remove()
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("early", [0, 1])
def test_nothing_leaks(backward: bool, early: int) -> None:
    model, args = branching()
    plan = planned(model, args)
    forward = HookedForward(model, plan.flow, plan._script(), CPU, EmulatedLanes(early=copies(early)))
    live = []
    gc.collect()
    gc.disable()
    try:
        with Meter() as meter:
            for _ in range(50):
                model.zero_grad()
                result = forward(*args).sum()
                if backward:
                    result.backward()
                del result
                live.append(meter.live)
    finally:
        gc.enable()
    assert live[1:] == live[1:2] * 49
