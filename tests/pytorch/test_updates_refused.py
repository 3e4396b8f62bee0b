"""What no plan of a whole step can hold is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from updating import V100, loss, mlp, planned

import memsched as ms
import memsched.torch as mt
from memsched.errors import InvalidInputError
from memsched.torch import CaptureError


def test_what_no_update_has_seen_is_told() -> None:
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.1)
    plan = planned(model, x, optimizer)
    plan.step(x)
    model.zero_grad()
    loss(model[:3](x)).backward()
    with pytest.raises(ms.MemschedError, match=r"0.0.weight got a gradient that no update of the plan has seen"):
        plan._updates.ended(model)  # type: ignore[union-attr]


def test_what_is_not_as_it_was_planned_is_refused() -> None:
    """A parameter that took the place of another was not updated, or another was with its gradient, in silence."""
    model, x = mlp(), torch.randn(8, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = planned(model, x, optimizer)
    plan.step(x)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(InvalidInputError, match="other options that are 0"):
        plan.step(x)
    optimizer.param_groups[0]["momentum"] = 0
    before = model[1][0].weight
    model[1][0].weight = nn.Parameter(torch.zeros(24, 24))
    with pytest.raises(InvalidInputError, match=r"1.0.weight is another tensor than when the step was planned"):
        plan.step(x)
    model[1][0].weight = before
    plan.step(x)
    model[1][0].weight = model[0][0].weight
    with pytest.raises(InvalidInputError, match=r"1.0.weight is another tensor"):
        plan.step(x)
    model[1][0].weight = before
    handle = optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(InvalidInputError, match="the step of SGD also calls <lambda>, which a step with update=True"):
        plan.step(x)
    handle.remove()
    with torch.no_grad(), pytest.raises(InvalidInputError, match="under no_grad"):
        plan.step(x)
    plan.step(x)
    groups = optimizer.param_groups
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    groups[1]["params"].append(groups[0]["params"].pop())
    with pytest.raises(InvalidInputError, match="other groups"):
        plan.step(x)


def test_parameters_in_one_memory_are_refused() -> None:
    """An update of one changed what the other's read; slices that do not overlap are fine."""
    x, flat = torch.randn(8, 24), torch.randn(2, 24, 24)
    for shared in (flat[0], flat[0].t(), flat.view(-1)[24:600].view(24, 24)):
        model = mlp()
        model[1][0].weight.data, model[3][0].weight.data = flat[0], shared
        with pytest.raises(InvalidInputError, match=r"0.weight and \d.0.weight lie in the same memory"):
            planned(model, x, torch.optim.SGD(model.parameters(), lr=0.1))
    model = mlp()
    model[1][0].weight.data, model[3][0].weight.data = flat[0], flat[1]
    plan = planned(model, x, torch.optim.SGD(model.parameters(), lr=0.1))
    plan.step(x)
    model[2][0].weight.data = model[1][0].weight.data
    with pytest.raises(InvalidInputError, match=r"1.0.weight and 2.0.weight lie in the same memory"):
        plan.step(x)


@pytest.mark.parametrize("accumulate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_parameters_that_are_frozen_or_no_longer_are_refused(accumulate: bool) -> None:
    """Their gradients had waited before `step` refused them."""
    model, x = mlp(), torch.randn(8, 24)
    model[1].requires_grad_(False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = mt.plan_step(
        model, (x,), loss, budget="100%", device=V100, optimizer=sgd, update=True, accumulate=accumulate
    )
    plan.step(x)
    for changed, told in ((model[1], "1.0.weight is trained now, and was frozen"), (model[2], "2.0.weight is frozen")):
        for one in changed.parameters():
            one.requires_grad_(not one.requires_grad)
        for step in (plan.step, plan.accumulate) if accumulate else (plan.step,):
            with pytest.raises(InvalidInputError, match=told):
                step(x)
        assert all(one.grad is None for one in model.parameters())
        for one in changed.parameters():
            one.requires_grad_(not one.requires_grad)
    plan.step(x)


def test_gradients_that_wait_are_dense_and_apart() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = mt.plan_step(model, (x,), loss, budget="100%", device=V100, optimizer=sgd, update=True, accumulate=True)
    before = copy.deepcopy(model.state_dict())
    plan.accumulate(x)
    kept = model[0][0].weight.grad
    model[0][0].weight.grad = model[2][0].weight.grad
    with pytest.raises(InvalidInputError, match=r"the gradient of 0.0.weight and the gradient of 2.0.weight lie"):
        plan.step(x)
    model[0][0].weight.grad = kept.to_sparse()
    with pytest.raises(InvalidInputError, match=r"0.0.weight has a gradient that is not dense"):
        plan.step(x)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    model[0][0].weight.grad = kept
    plan.step(x)


def test_a_loss_that_reads_weights_of_the_model_is_refused() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="the loss reads a parameter of the model, which would be updated twice"):
        mt.plan_step(
            model,
            (x,),
            lambda out: loss(out) + model[0][0].weight.square().sum(),
            budget="100%",
            device=V100,
            optimizer=sgd,
            update=True,
        )


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.second(x))


class Own(torch.optim.SGD):
    pass


def test_what_cannot_be_a_part_of_the_step_is_refused() -> None:
    model, x = mlp(), torch.randn(8, 24)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def refused(match: str, kind: type[Exception] = InvalidInputError, **options: Any) -> None:
        given: dict[str, Any] = {"budget": "100%", "device": V100, "optimizer": sgd, "update": True, "model": model}
        given |= options
        with pytest.raises(kind, match=match):
            mt.plan_step(given.pop("model"), (x,), loss, **given)

    refused("update is 'yes'; give True or False", update="yes")
    refused("update is True and optimizer is None", optimizer=None)
    refused("update is 'each' and optimizer is 4096", optimizer=4096, update="each")
    refused("optimizer is Own, whose updates may depend", optimizer=Own(model.parameters(), lr=0.1))
    refused("update is True and rounds is True", rounds=True)
    capturable = torch.optim.Adam(model.parameters(), capturable=True)  # on the CPU
    refused("a copy of Adam cannot update a parameter by itself .*; plan with update=False", optimizer=capturable)
    refused("update is True and planner is 'pooch'", planner="pooch")
    different = torch.optim.Adam(model.parameters(), differentiable=True)
    refused("make it with differentiable=False", optimizer=different)
    other = torch.optim.SGD(mlp(5, 16).parameters(), lr=0.1)
    refused("built for another model", optimizer=other)
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    refused("it was built for another model, or a copy of it", optimizer=other)
    broken = Broken()
    refused(
        r"captured in 3 graphs, .*: remove what breaks it \(.+\), whose line TORCH_LOGS=graph_breaks shows",
        CaptureError,
        model=broken,
        optimizer=torch.optim.SGD(broken.parameters(), lr=0.1),
    )
    hook = sgd.register_step_pre_hook(lambda *_: None)
    refused("also calls <lambda>")
    hook.remove()
    handle = model[0][0].weight.register_hook(lambda one: one)
    refused("0.0.weight has a hook for its gradient")
    handle.remove()
    plan = mt.plan_step(model, (x,), loss, budget="100%", device=V100, optimizer=sgd, update=True)
    loss(model(x)).backward()
    with pytest.raises(InvalidInputError, match=r"0.0.weight has a gradient from before.*zero_grad"):
        plan.step(x)
    sgd.zero_grad()
    plan.step(x)
