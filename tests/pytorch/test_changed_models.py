"""What is changed after a model was planned is honoured or refused by name, and never ignored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import memsched as ms
from memsched.errors import MemschedError
from memsched.torch.premises import Premises
from pytorch import odd_models
from pytorch.odd_models import SETTINGS, WIDTH, Case, inputs, lin
from pytorch.test_odd_models import built, planned, same, some_slow, train

SCALE = 2.0
QUICK = (
    *("dropout", "epsilon", "global", "number", "object", "submodule", "forward_hook", "hook_on_all", "tied", "lambda"),
    *("frozen", "equal_list", "loaded", "new_parameter", "unused", "constant_in_place"),
)


class Free:
    factor = 3.0


class Changing(nn.Module):
    """Has one of everything that may change."""

    flag = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = lin(), lin()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(WIDTH)
        self.middle = nn.Sequential(lin(), nn.Tanh(), lin(), nn.GELU())
        self.temp, self.name, self.sizes, self.table = 1.0, "sin", [1, 2], {"a": 1.0}
        self.config, self.free = SimpleNamespace(scale=1.5, inner=SimpleNamespace(shift=1.0)), Free()
        self.activation = torch.sin
        self.helper = lambda x: x * SCALE
        self.unused = 0
        self.parts = [nn.Dropout(0.2)]
        self.constant = torch.ones(WIDTH)
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, x: Any, by: Any = 1) -> Any:
        x = self.norm(self.drop(self.first(x))) * self.temp
        x = x.sin() if self.name == "sin" else x.cos()
        x = self.middle(x) * self.sizes[-1] + self.table["a"] * self.config.scale + self.config.inner.shift
        x = self.helper(self.activation(x)) * self.flag * SETTINGS["scale"] * self.free.factor + self.constant
        return self.last(self.parts[0](x)) + self.shift * by


CHANGING = Case(make=Changing, kind="stages")


def set_(path: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        owner, _, name = path.rpartition(".")
        target = model
        for part in filter(None, owner.split(".")):
            target = getattr(target, part)
        setattr(target, name, value() if callable(value) and not isinstance(value, nn.Module) else value)

    return change


def forward_of(module: Any, function: Callable[..., Any]) -> None:
    module.forward = function


def double(module: Any, args: Any, result: Any = None) -> Any:
    return result * 2 if result is not None else None


def retype(module: Any) -> None:
    module.__class__ = nn.Sigmoid


def everywhere(model: Any) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, r: r * 1.5 if m is model.first else r)
    model.__dict__.setdefault("handles", []).append(handle)


ERRORS: dict[str, Callable[[Any], object]] = {
    "dropout": set_("drop.p", 0.25),
    "dropout_true": set_("drop.p", True),
    "epsilon": set_("norm.eps", 0.1),
    "momentum": set_("norm.momentum", 0.9),
    "no_statistics": set_("norm.track_running_stats", False),
    "number": set_("temp", 3.0),
    "sign_of_zero": set_("temp", -0.0),
    "type_of_number": set_("temp", 1),
    "text": set_("name", "cos"),
    "list": lambda m: m.sizes.append(5),
    "dict": lambda m: m.table.update(a=4.0),
    "object": set_("config.scale", 0.5),
    "inner_object": set_("config.inner.shift", 0.5),
    "object_attribute_over_class": set_("free.factor", 4.0),
    "function": lambda m: setattr(m, "activation", torch.cos),
    "lambda": lambda m: setattr(m, "helper", lambda x: x * 7),
    "code": lambda m: setattr(m.helper, "__code__", (lambda x: x + 7).__code__),
    "attribute_over_class": set_("flag", 2.0),
    "submodule": lambda m: setattr(m, "drop", nn.Identity()),
    "inner_submodule": lambda m: m.middle.__setitem__(1, nn.ReLU()),
    "append": lambda m: m.middle.append(nn.Tanh()),
    "class": lambda m: retype(m.middle[1]),
    "argument_of_activation": set_("middle.3.approximate", "tanh"),
    "hidden_module": lambda m: setattr(m.parts[0], "p", 0.0),
    "part_in_eval": lambda m: m.drop.eval(),
    "hidden_in_eval": lambda m: m.parts[0].eval(),
    "forward_of_part": lambda m: forward_of(m.middle[1], torch.sigmoid),
    "forward_hook": lambda m: m.middle[0].register_forward_hook(double),
    "forward_pre_hook": lambda m: m.middle[0].register_forward_pre_hook(lambda n, a: (a[0] * 2,)),
    "backward_hook": lambda m: m.middle[0].register_full_backward_hook(lambda n, i, o: (i[0] * 2,)),
    "backward_pre_hook": lambda m: m.middle[0].register_full_backward_pre_hook(lambda n, o: (o[0] * 2,)),
    "hook_on_all": everywhere,
    "frozen": lambda m: m.first.requires_grad_(False),
    "constant": lambda m: setattr(m, "constant", torch.zeros(WIDTH, dtype=torch.float64)),
    "no_bias": lambda m: setattr(m.middle[0], "bias", None),
    "tied": lambda m: setattr(m.middle[0], "weight", m.middle[2].weight),
    "parametrized": lambda m: parametrizations.weight_norm(m.middle[0]),
    "pruned": lambda m: prune.l1_unstructured(m.middle[0], "weight", 0.5),
    "lora": lambda m: setattr(m, "first", nn.Sequential(m.first, lin())),
    "double": lambda m: m.double(),
    "buffer_of_other_shape": lambda m: m.register_buffer("shift", torch.ones(1)),
    "global_dict": lambda m: SETTINGS.update(scale=4.0),
    "class_attribute": lambda m: setattr(Changing, "flag", 5.0),
    "class_of_object": lambda m: setattr(Free, "factor", 5.0),
    "method": lambda m: setattr(Changing, "forward", lambda self, x: self.last(x)),
    "global": lambda m: globals().update(SCALE=9.0),
}
STRICT: dict[str, Callable[[Any], object]] = {
    "default_dtype": lambda m: torch.set_default_dtype(torch.float64),
    "deterministic": lambda m: torch.use_deterministic_algorithms(True),
    "default_device": lambda m: torch.set_default_device("meta"),
}  # what other captures would not differ by
HONOURED: dict[str, Callable[[Any], object]] = {
    "order": lambda m: setattr(m, "middle", nn.Sequential(m.middle[2], m.middle[1], m.middle[0], m.middle[3])),
    "nothing": lambda m: None,
    "equal_number": set_("temp", lambda: float("1.0")),
    "equal_list": lambda m: setattr(m, "sizes", [1, 2]),
    "unused": set_("unused", 5),
    "new_attribute": set_("fresh", 5),
    "new_parameter": lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach() * 2)),
    "data": lambda m: setattr(m.first.weight, "data", m.first.weight.data * 2),
    "loaded": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    "assigned": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}, assign=True),
    "buffer": lambda m: m.register_buffer("shift", torch.zeros(WIDTH)),
    "buffer_in_place": lambda m: m.shift.mul_(2),
    "constant_in_place": lambda m: m.constant.mul_(2),
    "other_constant": lambda m: setattr(m, "constant", torch.zeros(WIDTH)),
    "float": lambda m: m.float(),
    "whole_model_in_eval": lambda m: m.eval(),
    "hook_on_the_model": lambda m: m.register_forward_hook(lambda n, a, r: r * 2),
    "hook_on_parameter": lambda m: m.first.weight.register_hook(lambda g: g * 2) and None,
    "gradients": lambda m: [setattr(p, "grad", torch.ones_like(p)) for p in m.parameters()],
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    saved = {"flag": Changing.flag, "forward": Changing.forward}
    hooks = dict(nn.modules.module._global_forward_hooks)
    yield
    nn.modules.module._global_forward_hooks.clear()
    nn.modules.module._global_forward_hooks.update(hooks)
    Changing.flag, Changing.forward, Free.factor = saved["flag"], saved["forward"], 3.0
    SETTINGS["scale"] = 2.0
    globals()["SCALE"] = 2.0
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_default_device(None)


@pytest.mark.parametrize("name", some_slow(ERRORS, QUICK))
def test_a_change_is_refused_and_plain_training_goes_on(name: str) -> None:
    model = built(CHANGING)
    plan = planned(model, CHANGING)
    assert plan.KIND == "stages", plan.report()
    plan.apply(model)
    train(model, CHANGING, 1)
    ERRORS[name](model)
    x = torch.randn(4, WIDTH, device="cpu", dtype=torch.float32)
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
