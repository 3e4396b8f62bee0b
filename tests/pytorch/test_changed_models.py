"""What is changed after a model was planned is honoured or refused by name, and never ignored."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.errors import MemschedError
from memsched.torch.premises import Premises
from pytorch import odd_models
from pytorch.changing_models import ERRORS, HONOURED, STRICT, Changing, restored
from pytorch.odd_models import SETTINGS, WIDTH, Case, inputs
from pytorch.test_odd_models import built, planned, same, some_slow, train

QUICK = (
    *("dropout", "epsilon", "global", "number", "object", "submodule", "forward_hook", "hook_on_all", "tied", "lambda"),
    *("frozen", "equal_list", "loaded", "new_parameter", "unused", "constant_in_place"),
)


CHANGING = Case(make=Changing, kind="stages")


@pytest.fixture(autouse=True)
def as_before() -> Any:
    with restored():
        yield


@pytest.mark.parametrize("name", some_slow(ERRORS, QUICK))
def test_a_change_is_refused_and_plain_training_goes_on(name: str) -> None:
    model = built(CHANGING)
    plan = planned(model, CHANGING)
    assert plan.KIND == "stages", plan.report()
    plan.apply(model)
    train(model, CHANGING, 1)
    ERRORS[name](model)
    x = torch.randn(64, WIDTH, device="cpu", dtype=torch.float32)
    with pytest.raises(MemschedError, match="has changed since it was planned"):
        model(x)
    assert all(p.grad is None or not p.grad.isnan().any() for p in model.parameters())


@pytest.mark.parametrize("name", some_slow(HONOURED, QUICK))
def test_a_change_is_honoured(name: str) -> None:
    want = train(built(CHANGING), CHANGING, 3, HONOURED[name])
    model = built(CHANGING)
    planned(model, CHANGING).apply(model)
    assert same(train(model, CHANGING, 3, HONOURED[name]), want)


@pytest.mark.parametrize("name", ["dropout", "number", "list", "object", "global_dict", "epsilon", "lambda"])
def test_a_plan_that_is_applied_again_computes_what_the_model_computes_now(name: str) -> None:
    """The same object, after remove(): it used to compute what it did when it was planned."""
    plain = built(CHANGING)
    train(plain, CHANGING, 1)
    ERRORS[name](plain)
    want = train(plain, CHANGING, 2, first=1)
    SETTINGS["scale"] = 2.0
    model = built(CHANGING)
    plan = planned(model, CHANGING)
    plan.apply(model)
    train(model, CHANGING, 1)
    plan.remove()
    ERRORS[name](model)
    plan.apply(model)
    assert same(train(model, CHANGING, 2, first=1), want)


def test_a_plan_is_not_applied_to_a_model_that_has_other_operations_now() -> None:
    model = built(CHANGING)
    plan = planned(model, CHANGING)
    model.middle[1] = nn.ReLU()
    with pytest.raises(MemschedError, match="differs in its stages"):
        plan.apply(model)


@pytest.mark.parametrize("value", [True, 1.0, 2, None, "1"])
def test_a_plain_input_of_another_type_or_value_is_refused(value: Any) -> None:
    case = Case(make=Changing, args=lambda: (inputs(), 1))
    model = built(case)
    planned(model, case).apply(model)
    with pytest.raises(ms.InvalidInputError, match="and the plan is for 1"):
        model(inputs(), value)


@pytest.mark.parametrize("planned_as", [0.0, -0.0])
def test_zeros_of_different_signs_are_different_inputs(planned_as: float) -> None:
    case = Case(make=Changing, args=lambda: (inputs(), planned_as))
    model = built(case)
    planned(model, case).apply(model)
    model(inputs(), planned_as).square().sum().backward()
    with pytest.raises(ms.InvalidInputError, match="and the plan is for"):
        model(inputs(), math.copysign(1, -1 if math.copysign(1, planned_as) > 0 else 1) * 0.0)


def test_inputs_that_were_one_tensor_must_be_one() -> None:
    case = odd_models.CASES["takes_same"]
    model = built(case)
    plan = planned(model, case)
    plan.apply(model)
    with pytest.raises(ms.InvalidInputError, match="one tensor"):
        model(inputs(), inputs(), inputs())
    again = ms.torch.TorchPlan.load(plan.to_json())
    plan.remove()
    again.apply(model)
    assert same(train(model, case), train(built(case), case))


def test_premises_of_a_copy_are_its_own() -> None:
    model = built(CHANGING)
    premises = Premises(model)
    other = Premises(copy.deepcopy(model))
    assert premises.changed() is None is other.changed()
    model.temp = 2.0
    assert premises.changed() == "'temp' was 1.0 and is 2.0"
    assert other.changed() is None


@pytest.mark.parametrize("name", some_slow([*ERRORS, *STRICT], QUICK[:3]))
def test_a_step_plan_refuses_a_change(name: str) -> None:
    model = built(CHANGING)
    plan = ms.torch.plan_step(
        model, (inputs(),), lambda out: out.square().mean(), budget="60%", device="v100:pcie3", planner="swap_opt"
    )
    (ERRORS | STRICT)[name](model)
    with pytest.raises(MemschedError, match="has changed since it was planned"):
        plan.step(inputs())
