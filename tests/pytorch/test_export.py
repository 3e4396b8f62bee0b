"""A planned step as a program: read, run without memsched, and compared bit by bit with the step that it is of."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import PLANS, Calls, Mlp, Program, check, models, planned, transformer
from torch import nn
from torch.utils import _pytree as pytree

import memsched.torch
from memsched.errors import InvalidInputError
from memsched.support.formats import exact_bytes
from memsched.torch import TorchPlan


@pytest.mark.parametrize("name", list(models()))
def test_the_program_has_the_bits_of_the_step(name: str, tmp_path: Path) -> None:
    model, args = models()[name]
    check(model, args, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["30%", "60%", "100%"])
@pytest.mark.parametrize("link", PLANS)
@pytest.mark.parametrize("name", list(models()))
def test_so_it_has_at_all_budgets(name: str, link: str, budget: str, tmp_path: Path) -> None:
    model, args = models()[name]
    try:
        check(model, args, tmp_path, budget=budget, bandwidth=PLANS[link], applied=True)
    except memsched.InfeasibleError:
        assert link == "recompute only"


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["30%", "60%", "100%"])
@pytest.mark.parametrize("link", PLANS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_so_it_has_of_language_models(name: str, link: str, budget: str, tmp_path: Path) -> None:
    model, kwargs = transformer(name)
    program = check(model, (), tmp_path, kwargs, budget=budget, bandwidth=PLANS[link], applied=True)
    assert "# model.layers.1.self_attn" in program.text or "# transformer.h.1.attn" in program.text
    words = {"recompute only": "  # recomputed", "with a link": "  # from the host"}
    assert (words[link] in program.text) is (budget != "100%")
    found = copy.deepcopy(model)
    torch.manual_seed(3)
    loss = program.step(found, kwargs["input_ids"], kwargs["attention_mask"], kwargs["input_ids"])
    torch.manual_seed(3)
    result = model(**kwargs)
    result.loss.backward()
    torch.testing.assert_close(loss, result.loss.detach(), rtol=0, atol=0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(found.parameters(), model.parameters(), strict=True))


def test_a_step_trains_as_the_model_does(tmp_path: Path) -> None:
    """Several steps with an optimiser, gradients that add up, and buffers that change."""
    model, (x,) = models()["cnn"]
    planned(model, (x,), "30%").export(tmp_path / "step.py", model, (x,))
    program, other = Program(tmp_path / "step.py"), copy.deepcopy(model)
    sides: list[list[torch.Tensor]] = []
    for one in (model, other):
        sgd = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for k in range(4):
            y = x + k
            if one is model:
                loss = program.step(one, y, loss=lambda out: out.square().mean())
            else:
                loss = one(y).square().mean()
                loss.backward()
            losses.append(loss.detach())
            if k % 2:
                sgd.step()
                sgd.zero_grad()
        sides.append([*losses, *one.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize("budget", ["1%", "30%"])
def test_a_share_is_that_of_the_step_with_its_loss(budget: str, tmp_path: Path) -> None:
    """It was one of the step without, so that a plan did not fit what it was made for, sometimes."""

    def wide(out: torch.Tensor) -> torch.Tensor:
        return sum((out.expand(8, -1, -1) * k).sin().exp().sum() for k in range(3))

    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh()), torch.randn(64, 16)
    plan = memsched.torch.plan(model, (x,), budget="100%", bandwidth=0, loss=wide).at(budget)
    plan.export(tmp_path / "step.py", model, (x,))
    program = Program(tmp_path / "step.py")
    assert f"at most {exact_bytes(plan.peak_memory)}" in program.text
    model(x).sum().backward()
    expected = [one.grad for one in model.parameters()]
    model.zero_grad()
    program.step(model, x, loss=torch.sum)
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), expected, strict=True))


def test_it_runs_where_there_is_no_memsched(tmp_path: Path) -> None:
    """The same file in a process that cannot import memsched, with a loss of the model."""
    model, args = models()["mlp with its loss"]
    planned(model, args, "30%").export(tmp_path / "exported_step.py", model, args)
    loss, _ = model(*args)
    loss.backward()
    torch.save((args, model.state_dict(), [one.grad for one in model.parameters()], loss.detach()), tmp_path / "all.pt")
    code = f"""
import sys
sys.modules["memsched"] = None
sys.path.insert(0, {str(tmp_path)!r})
import torch, exported_step as step
from torch import nn
args, state, gradients, loss = torch.load({str(tmp_path / "all.pt")!r})
model = nn.Module()
model.layers, model.head = nn.ModuleList(nn.Linear(32, 32) for _ in range(6)), nn.Linear(32, 5)
model.load_state_dict(state)
assert torch.equal(step.step(model, *args), loss)
assert all(torch.equal(a.grad, b) for a, b in zip(model.parameters(), gradients))
assert not any(name.startswith("memsched.") for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_text_is_the_same_each_time_and_fits_a_page(tmp_path: Path) -> None:
    model, args = models()["cnn"]
    plan = planned(model, args, "30%", bandwidth="12GB/s")
    plan.save(tmp_path / "plan.json")
    for name, one in (("a.py", plan), ("b.py", TorchPlan.load(tmp_path / "plan.json"))):
        one.export(tmp_path / name, model, args)
    text = (tmp_path / "a.py").read_text()
    assert text == (tmp_path / "b.py").read_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "    # body.1\n" in text
    assert "offload(" in text
    assert "del " in text
    assert 'params["stem.weight"]' in text


HOSTILE = 'a"""\nraise SystemExit(3)\n#'


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ModuleDict()
        for name in (HOSTILE, "b'\\", "é\u2028x", "class", "torch", "}]) or exit() #"):
            self.part.add_module(name, nn.Linear(8, 8))
        self.part[HOSTILE].register_buffer("x\r\ny", torch.ones(8))

    def forward(self, x: torch.Tensor, *, flag: str = "") -> torch.Tensor:
        for layer in self.part.values():
            x = torch.tanh(layer(x))
        return x * self.part[HOSTILE].get_buffer("x\r\ny")


def test_names_are_no_code(tmp_path: Path) -> None:
    Hostile.__name__ = "A\nraise SystemExit(4)"
    program = check(Hostile(), (torch.randn(8, 8),), tmp_path, {"flag": 'b"""\nraise SystemExit(5)'})
    assert "\nraise" not in program.text
    assert program.text.isascii()


def test_a_plan_from_a_stranger_is_no_code(tmp_path: Path) -> None:
    """What a file says of modules and costs is in no program, and neither are steps that do not fit the model."""
    model, args = models()["mlp"]
    plan = planned(model, args)
    document = plan.to_json()
    document["plan"]["modules"] = dict.fromkeys(document["plan"]["modules"], "x\nraise SystemExit(3)")
    document["plan"]["source"] = "x\nraise SystemExit(3)"
    TorchPlan.load(document).export(tmp_path / "step.py", model, args)
    assert "SystemExit" not in (tmp_path / "step.py").read_text()
    steps = document["plan"]["steps"]
    document["plan"]["steps"] = [*steps[:3], *steps[4:]]
    with pytest.raises(InvalidInputError, match="the steps of the plan do not run the captured step"):
        TorchPlan.load(document).export(tmp_path / "other.py", model, args)
    assert not (tmp_path / "other.py").exists()


@torch.library.custom_op("exported::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


square.register_fake(torch.empty_like)
square.register_autograd(
    lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_operators_of_others_are_noted(tmp_path: Path) -> None:
    program = check(Calls(lambda one, x: one.layer(square(one.layer(x)))), (torch.randn(4, 8),), tmp_path)
    assert "# Import first what defines torch.ops.exported." in program.text


@torch.library.custom_op("exported::" + "_".join(["square"] * 14), mutates_args=())
def square_of_a_long_name(x: torch.Tensor) -> torch.Tensor:
    return x * x


square_of_a_long_name.register_fake(torch.empty_like)
square_of_a_long_name.register_autograd(
    lambda ctx, gradient: 2 * gradient * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_long_name_takes_no_dimension_away(batch: int, tmp_path: Path) -> None:
    """What an operator gave was unpacked where its line was broken."""
    model = Calls(lambda one, x: one.layer(square_of_a_long_name(one.layer(x))))
    check(model, (torch.randn(batch, 8),), tmp_path)


def autocast(one: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.tanh(one.layer(x)).float()


def spectrum(one: Any, x: torch.Tensor) -> torch.Tensor:
    return (torch.fft.rfft(one.layer(x)).conj() * torch.fft.rfft(x)).abs()


def both(one: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    h = torch.tanh(one.layer(x))
    return {"h": h, "same": h, "without": h.detach(), "given": y, "best": h.argmax(1)}


class Cache:
    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.layers = [{"keys": one} for one in tensors]


def cached(one: Any, x: torch.Tensor) -> Any:
    h = torch.tanh(one.layer(x))
    return one.layer(h), Cache([h])


def updated(one: Any, x: torch.Tensor) -> torch.Tensor:
    h = one.layer(x) + one.scale
    one.scale.mul_(2)
    return torch.tanh(h) * one.scale


ODD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "autocast": (autocast, (torch.randn(4, 8),)),
    "complex numbers": (spectrum, (torch.randn(4, 8),)),
    "many results": (both, (torch.randn(4, 8), torch.ones(3))),
    "a buffer that is read and changed": (updated, (torch.randn(4, 8),)),
    "constants": (
        lambda one, x: one.layer(x) * torch.tensor([float("inf"), -0.0] * 4).nan_to_num(),
        (torch.randn(4, 8),),
    ),
    "an input twice": (lambda one, x, y: one.layer(x) * y, (torch.randn(4, 8),) * 2),
    "a view": (lambda one, x: one.layer(x).view(2, 16), (torch.randn(4, 8),)),
    "an input that needs a gradient alone": (lambda one, x: x * one.scale, (torch.randn(4, 8, requires_grad=True),)),
}


class Named:
    def __init__(self, out: torch.Tensor) -> None:
        self.out = out


def test_a_container_without_names_is_counted(tmp_path: Path) -> None:
    pytree.register_pytree_node(Named, lambda one: ([one.out], None), lambda parts, _: Named(*parts))
    try:
        model, args = Calls(lambda one, x: Named(one.layer(x))), (torch.randn(4, 8),)
        planned(model, args, "100%").export(tmp_path / "step.py", model, args)
        assert torch.equal(Program(tmp_path / "step.py").run(model, *args), model(*args).out)
    finally:
        pytree._deregister_pytree_node(Named)


def test_an_object_among_the_results_is_left_out(tmp_path: Path) -> None:
    model, args = Calls(cached), (torch.randn(4, 8),)
    planned(model, args).export(tmp_path / "step.py", model, args)
    program = Program(tmp_path / "step.py")
    assert "# The model also returns Cache, which the program leaves out." in program.text
    found = program.run(model, *args)
    found.sum().backward()
    gradient, model.layer.weight.grad = model.layer.weight.grad, None
    expected = model(*args)[0]
    expected.sum().backward()
    assert torch.equal(found, expected)
    assert torch.equal(gradient, model.layer.weight.grad)


@pytest.mark.parametrize("name", ODD)
def test_odd_steps_have_the_same_bits(name: str, tmp_path: Path) -> None:
    function, args = ODD[name]
    check(Calls(function), args, tmp_path, budget="50%")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_have_the_same_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    check(Mlp().to(dtype), (torch.randn(64, 32, dtype=dtype),), tmp_path)


def test_it_runs_in_inference_mode(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    program = check(model, args, tmp_path)
    with torch.inference_mode():
        torch.manual_seed(0)
        found = program.run(model, *args)
        torch.manual_seed(0)
        assert torch.equal(found, model(*args))


def test_frozen_parameters_get_no_gradient(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    model.layers[:3].requires_grad_(False)
    program = check(model, args, tmp_path)
    program.step(model, *args, loss=lambda out: out.sum())
    assert model.layers[2].weight.grad is None
    assert model.layers[3].weight.grad is not None
