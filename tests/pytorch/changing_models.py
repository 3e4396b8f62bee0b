"""A model with one of everything that may change while it is trained, and the changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from pytorch.odd_models import SETTINGS, WIDTH, lin

SCALE = 2.0


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


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """What changes outside of the model is afterwards as before."""
    saved = {"flag": Changing.flag, "forward": Changing.forward}
    hooks = dict(nn.modules.module._global_forward_hooks)
    try:
        yield
    finally:
        nn.modules.module._global_forward_hooks.clear()
        nn.modules.module._global_forward_hooks.update(hooks)
        Changing.flag, Changing.forward, Free.factor = saved["flag"], saved["forward"], 3.0
        SETTINGS["scale"] = 2.0
        globals()["SCALE"] = 2.0
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
