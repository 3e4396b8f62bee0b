"""Whatever a model does in its forward, training it under the backend computes what plain training does."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from memsched.errors import InfeasibleError
from memsched.torch.compiled.compiled_plan import CompiledPlan
from memsched.torch.compiled.groups import plans
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning
from pytorch import odd_models
from pytorch.odd_models import CASES, Case, Holder
from pytorch.test_compiled_models import made_since

CPU = torch.device("cpu")
Steps = list[Any]
BUDGETS = ("20%", "50%", "80%", "100%")
QUICK = {
    *("straight_through_alias", "function_under_reentrant", "hook_on_activation", "sets_attribute", "python_random"),
    *("vmapped", "checkpointed_twice", "running_buffer", "loose_tensor", "in_place_view", "data_write"),
    *("autocast_part", "checkpointed_buffer"),
}
UNPLANNED = {"momentum_encoder": "set_ on a graph input", "sparse_gradient": "sparse_coo"}
ONCE = {"checkpointed_statistics", "checkpointed_buffer", "checkpointed_drawing"}
"""Plain `checkpoint` writes to buffers, or draws, once more. Compiled, they do so once, with or without a plan."""
TWICE_DERIVED = {"grad_inside"}
LINK = [pytest.param({}, id="alone"), pytest.param({"bandwidth": "1GB/s"}, id="with a link", marks=pytest.mark.slow)]


def some_slow(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """All of them as parameters; those that are not quick are slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def built(case: Case) -> nn.Module:
    """The model, with all that it and the steps read from outside as at the beginning."""
    torch._dynamo.reset()
    seeded(0)
    odd_models.calls.clear()
    return case.make().train()


def loss_of(model: Any, result: Any) -> Any:
    """All that the result holds and that needs a gradient, and what the model says beside it."""
    values = list(vars(result).values()) if isinstance(result, Holder) or hasattr(result, "value") else result
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    loss = sum((k + 1) * (leaf.square().sum() + leaf.sum()) / 64 for k, leaf in enumerate(leaves))
    return loss + getattr(model, "aux", 0.0)


def train(
    model: Any,
    run: Any,
    case: Case,
    steps: int = 3,
    change: Callable[[Any], object] | None = None,
    peaks: list[int] | None = None,
) -> Steps:
    """What every step computes, and what is there after it. A change comes before the last step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=0.9)
    found: Steps = []
    for step in range(steps):
        if change is not None and step == steps - 1:
            change(model)
        seeded(step)
        args, kwargs = case.args(), case.kwargs
        optimizer.zero_grad()
        with counted(CPU) as meter:
            result = run(*args, **kwargs)
            loss = loss_of(model, result)
            loss.backward()
        if peaks is not None:
            peaks.append(meter.peak)
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        inputs = [leaf.grad for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        state = [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        leaves = [leaf.detach().clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        rest = [torch.get_rng_state(), random.random(), float(np.random.rand()), len(odd_models.calls)]
        found.append([loss.detach(), leaves, gradients, inputs, state, rest])
    return found


def same(one: Any, other: Any) -> bool:
    """Equal bit for bit, of the same type and layout."""
    a, b = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(a) == len(b) and all(map(_same, a, b))


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b) and bool(a == b)
    if a.layout != b.layout or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) if a.layout is torch.strided else torch.equal(a.to_dense(), b.to_dense())


def planned(case: Case, first: str, **options: Any) -> tuple[Steps, list[CompiledPlan], list[int]]:
    """Steps under a budget, or the next that is enough; their plans, and the counted peaks."""
    for budget in BUDGETS[BUDGETS.index(first) :]:
        model, known, peaks = built(case), plans(), list[int]()
        run = torch.compile(model, backend="memsched", options={"budget": budget, **options})
        try:
            return train(model, run, case, peaks=peaks), made_since(known), peaks
        except InfeasibleError:
            continue
    raise AssertionError("the plain step does not fit its own peak")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", LINK)
@pytest.mark.parametrize("name", some_slow([name for name in CASES if name not in TWICE_DERIVED], QUICK))
def test_training_is_the_same(name: str, options: dict[str, Any]) -> None:
    case = CASES[name]
    if name in ONCE:
        want = planned(case, "100%")[0]
    else:
        model = built(case)
        want = train(model, model, case)
    found, made, peaks = planned(case, "20%", **options)
    assert same(found, want)
    assert bool(made) == (name not in UNPLANNED)
    if len(made) == 1:  # of several graphs, each is planned by itself in the first step
        (plan,) = made
        assert all(plan.process_bytes(peak) <= plan.result.schedule.budget for peak in peaks)


@pytest.mark.parametrize(("name", "reason"), [*UNPLANNED.items()])
def test_what_is_not_planned_is_said(name: str, reason: str) -> None:
    with pytest.warns(UnplannedWarning, match=reason):
        planned(CASES[name], "100%")


def changing(run: Any, given: torch.Tensor, changed: torch.Tensor) -> Any:
    loss = run(given)
    with torch.no_grad():
        changed.mul_(2)
    loss.backward()


@pytest.mark.filterwarnings("ignore::memsched.torch.compiled.unplanned.UnplannedWarning")
@pytest.mark.parametrize("bandwidth", ["0", "12GB/s"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("changed", range(5))
def test_what_runs_without_a_plan_sees_what_is_changed_before_the_backward(
    bandwidth: str, flat: bool, changed: int
) -> None:
    """With a link, hooks pack what is saved, and PyTorch does not look at the versions of what hooks pack."""
    embed = torch.nn.Embedding(5, 3, sparse=True)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    if flat:  # the parameters lie in one memory, each with a version of its own
        vector_to_parameters(parameters_to_vector(net.parameters()), net.parameters())
    options = {"budget": "100%", "bandwidth": bandwidth}

    def plain(ids: torch.Tensor) -> torch.Tensor:
        return net(embed(ids)).sin().sum() + embed.weight.t().cos().sum()

    run, ids = torch.compile(plain, backend="memsched", options=options), torch.tensor([1, 2, 2])
    run(ids).backward()
    tensors, outcomes = [*net.parameters(), embed.weight], []
    before = [one.detach().clone() for one in tensors]
    for call in (plain, run):
        for one, value in zip(tensors, before, strict=True):
            one.data.copy_(value)
            one.grad = None
        try:
            changing(call, ids, tensors[changed])
        except RuntimeError as error:
            outcomes.append([torch.tensor(bool(re.search("inplace operation|changed in place", str(error))))])
        else:
            outcomes.append([one.grad.to_dense().clone() for one in tensors])
    first, second = outcomes
    assert len(first) == len(second)
    assert all(map(torch.equal, first, second))


@pytest.mark.filterwarnings("ignore")
def test_the_result_of_an_operation_in_place_on_an_input_is_looked_at() -> None:
    embed = torch.nn.Embedding(5, 3, sparse=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.exp_().sum() + embed(torch.tensor([1])).sum()

    run = torch.compile(step, backend="memsched", options={"budget": "100%", "bandwidth": "12GB/s"})
    x = torch.randn(3, requires_grad=True) * 1
    loss = run(x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match=r"inplace operation|changed in place"):
        loss.backward()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bandwidth", ["0", "12GB/s"])
@pytest.mark.parametrize("preserve", [{}, {"preserve_rng_state": False}], ids=["preserved", "not"])
def test_a_checkpoint_that_runs_without_a_plan_draws_as_plain_ones_do(bandwidth: str, preserve: dict[str, Any]) -> None:
    layer, embed = nn.Linear(32, 32), nn.Embedding(5, 32, sparse=True)
    given, ids = torch.randn(8, 32), torch.tensor([1] * 8)

    def part(one: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(layer(one).tanh(), 0.5)

    def step(one: torch.Tensor) -> torch.Tensor:
        return (checkpoint(part, one, use_reentrant=False, **preserve) + embed(ids)).square().sum()

    found = []
    for run in (step, torch.compile(step, backend="memsched", options={"budget": "100%", "bandwidth": bandwidth})):
        layer.zero_grad()
        torch.manual_seed(1)
        run(given).backward()
        found.append([layer.bias.grad, torch.rand(1)])
    assert all(map(torch.equal, *found))


@pytest.mark.filterwarnings("ignore")
def test_an_operation_that_returns_what_it_is_given_is_not_planned() -> None:
    scale, x = nn.Parameter(torch.linspace(-1, 1, 64)), torch.randn(256, 64)

    def step(given: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            given = torch.tanh(given * scale) * torch.ops.aten.native_dropout(given, 0.25, False)[0] + given * 0.1
        return given.square().mean()

    found = []
    for run in (step, torch.compile(step, backend="memsched", options={"budget": "30%"})):
        scale.grad = None
        run(x).backward()
        found.append(scale.grad)
    assert torch.equal(*found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(TWICE_DERIVED))
def test_derivatives_of_derivatives_are_an_error_of_pytorch(name: str) -> None:
    """A compiled part of the model cannot be derived twice, whatever the backend."""
    model = built(CASES[name])
    run = torch.compile(model, backend="memsched", options={"budget": "100%"})
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        train(model, run, CASES[name])


class Looping(nn.Module):
    """A loop as PyTorch captures it, whose backward it cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = (torch.tensor(0), self.layer(x))
        found = torch.ops.higher_order.while_loop(lambda k, one: k < 3, lambda k, one: (k + 1, one.sin()), start, ())
        result: torch.Tensor = found[1]
        return result


def test_what_pytorch_cannot_trace_is_said_to_be_pytorchs() -> None:
    """And nothing looks as if the model were broken."""
    run = torch.compile(Looping(), backend="memsched", options={"budget": "100%"})
    with pytest.warns(
        UnplannedWarning, match=r"PyTorch cannot trace its backward \(DataDependentOutputException: aten"
    ):
        run(torch.randn(2, 4)).sum().backward()
