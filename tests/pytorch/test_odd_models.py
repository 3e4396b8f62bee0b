"""Whatever a model does, planned training computes what plain training does, or ends in an error of ours."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import memsched as ms
from memsched.errors import InfeasibleError, MemschedError
from memsched.torch import HookedPlan, TorchPlan
from pytorch import odd_models
from pytorch.odd_models import CASES, Case, Holder
from pytorch.steps import identical

Steps = list[Any]
QUICK = (
    *("straight_through_alias", "reversal", "hook_on_activation", "hook_on_node", "full_backward_hook", "forward_hook"),
    *("hook_on_the_model", "sets_attribute", "counts", "python_random", "own_generator", "vmapped", "branches"),
    *(
        "backward_within",
        "checkpointed_statistics",
        "recursive_helper",
        "running_buffer",
        "tied",
        "gives_twice",
        "takes_same",
        "takes_normed",
        "lstm",
        "loose_tensor",
        "checkpointed_reentrant",
    ),
)


def some_slow(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """All of them as parameters; those that are not quick are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def built(case: Case) -> nn.Module:
    seeded(0)
    odd_models.calls.clear()
    return case.make().train()


def loss_of(model: Any, result: Any) -> Any:
    """All that the result holds and that needs a gradient, and what the model says beside it."""
    values = list(vars(result).values()) if isinstance(result, Holder) or hasattr(result, "value") else result
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    loss = sum((k + 1) * (leaf.square().sum() + leaf.sum()) for k, leaf in enumerate(leaves))
    return loss + getattr(model, "aux", 0.0)


def train(
    model: Any, case: Case, steps: int = 3, change: Callable[[Any], object] | None = None, first: int = 0
) -> Steps:
    """What every step computes, and what is there after it. A change comes before the last step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    found: Steps = []
    for step in range(first, first + steps):
        if change is not None and step == first + steps - 1:
            change(model)
        seeded(step)
        args, kwargs = case.args(), case.kwargs
        optimizer.zero_grad()
        result = model(*args, **kwargs)
        loss = loss_of(model, result)
        loss.backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        inputs = [leaf.grad for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        state = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        leaves = [leaf.detach().clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        rest = [torch.get_rng_state(), random.random(), float(np.random.rand()), len(odd_models.calls)]
        found.append([loss.detach(), leaves, gradients, inputs, state, rest])
    return found


def same(one: Any, other: Any) -> bool:
    a, b = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(a) == len(b) and all(
        torch.equal(x, y)
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.layout is not torch.strided is y.layout
        else (x is None and y is None) or (x.layout == y.layout and torch.equal(x.to_dense(), y.to_dense()))
        if isinstance(x, torch.Tensor) and x.layout is not torch.strided
        else identical(x, y) or (isinstance(x, torch.Tensor) and bool((x.isnan() & y.isnan()).all()))
        for x, y in zip(a, b, strict=True)
    )


def snapshot(model: Any) -> list[Any]:
    """All that planning must leave as it was."""
    tensors = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
    attributes = [
        (name, key, copy.copy(value) if isinstance(value, list | dict) and key[0] != "_" else type(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
    ]
    gradients = [p.grad for p in model.parameters()]
    return [tensors, torch.get_rng_state(), random.getstate(), repr(np.random.get_state()), attributes, gradients]


def planned(model: Any, case: Case, budget: Any = "20%") -> TorchPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ms.torch.plan(model, case.args(), case.kwargs, budget=budget, device="v100:pcie3")
        except InfeasibleError as error:
            return ms.torch.plan(model, case.args(), case.kwargs, budget=error.min_memory, device="v100:pcie3")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_slow(CASES, QUICK))
def test_training_is_the_same(name: str) -> None:
    case = CASES[name]
    want = train(built(case), case)
    model = built(case)
    before = repr(snapshot(model))
    if case.kind == "error":
        with pytest.raises(MemschedError, match=case.says):
            planned(model, case)
        assert repr(snapshot(model)) == before
        odd_models.calls.clear()
        assert same(train(model, case), want)
        return
    plan = planned(model, case)
    odd_models.calls.clear()
    assert repr(snapshot(model)) == before
    assert isinstance(plan, HookedPlan) == (case.kind == "hooks"), getattr(plan, "reason", "")
    if isinstance(plan, HookedPlan):
        assert case.says in plan.reason
    plan.apply(model)
    assert same(train(model, case), want)


def stepped(model: Any, case: Case, step: Callable[..., Any]) -> Steps:
    """Three training steps that are called as a whole."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    found: Steps = []
    for k in range(3):
        seeded(k)
        args = case.args()
        optimizer.zero_grad()
        loss = step(*args).detach()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        state = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        found.append([loss, gradients, state, torch.get_rng_state()])
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", some_slow([name for name in CASES if not CASES[name].kwargs], QUICK[:4]))
def test_a_planned_step_is_the_same_or_refused(name: str) -> None:
    case, model = CASES[name], built(CASES[name])
    options: dict[str, Any] = {"device": "v100:pcie3", "planner": "swap_opt"}

    def plan(budget: str | int) -> Any:
        return ms.torch.plan_step(model, case.args(), lambda out: loss_of(model, out), budget=budget, **options)

    try:
        try:
            step = plan("60%").step
        except InfeasibleError as error:
            step = plan(error.min_memory).step
        odd_models.calls.clear()
        found = stepped(model, case, step)
    except MemschedError:
        return
    other = built(case)

    def plain(*args: Any) -> Any:
        loss = loss_of(other, other(*args))
        loss.backward()
        return loss

    assert same(found, stepped(other, case, plain))
