"""What no program can hold, and what a program was not made for, is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import Calls, Program, models, planned
from torch import nn

from memsched.errors import InvalidInputError, MemschedError
from memsched.torch import CaptureError


def _breaks(one: Any, x: torch.Tensor) -> Any:
    h = one.layer(x)
    torch._dynamo.graph_break()
    return one.layer(h)


def _changes(one: Any, x: torch.Tensor) -> Any:
    x.mul_(2)
    return one.layer(x)


def _clamps(one: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        one.layer.weight.clamp_(-1, 1)
    return one.layer(x)


def _counts(one: Any, x: torch.Tensor) -> Any:
    one.count += 1
    return one.layer(x)


def _keeps(one: Any, x: torch.Tensor) -> Any:
    one.kept = one.layer(x)
    return one.kept * 2


def _appends(one: Any, x: torch.Tensor) -> Any:
    one.told.append(len(one.told))
    return one.layer(x) * len(one.told)


def _replaces(one: Any, x: torch.Tensor) -> Any:
    one.scale = one.layer(x).mean(0)
    return one.layer(x)


def _views(one: Any, x: torch.Tensor) -> Any:
    h = one.layer(x)
    return h, h.t()


NUMBERS = [float(k) for k in range(2000)]
REFUSED: dict[str, Callable[..., Any]] = {
    "it is captured in 2 graphs, and a program holds one": _breaks,
    "its forward changes the input 0 in place": _changes,
    "its forward changes the parameter layer.weight in place": _clamps,
    "its forward changes the attribute count": _counts,
    "its forward changes the attribute kept": _keeps,
    "its forward changes the attribute told": _appends,
    "its forward computes a tensor .mean. that it does not return": _replaces,
    "result 1 of the model is a view of": _views,
    "it reads a tensor 'kept' that is no parameter, buffer or input": lambda one, x: one.layer(x) * one.kept,
    "makes a tensor of 2000 numbers": lambda one, x: one.layer(x).sum() * torch.tensor(NUMBERS),
    "it runs cond": lambda one, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (one.layer(x),)),
    "by as_strided": lambda one, x: one.layer(x.as_strided((2, 8), (8, 1), 8)),
    "result 1 of the model is a view": lambda one, x: (one.layer(x), one.layer.weight),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_no_program_holds_is_refused_by_name(said: str, tmp_path: Path) -> None:
    model, args = Calls(REFUSED[said]), (torch.randn(4, 8),)
    plan = planned(model, args, "100%")
    with pytest.raises(CaptureError, match=f"the step of Calls cannot be exported: .*{said}"):
        plan.export(tmp_path / "step.py", model, args)
    assert not list(tmp_path.iterdir())


@torch.compiler.disable
def apart(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def test_what_is_not_captured_is_refused(tmp_path: Path) -> None:
    model, args = Calls(lambda one, x: one.layer(apart(one.layer(x)))), (torch.randn(4, 8),)
    with pytest.warns(UserWarning, match="PyTorch captures no"):
        plan = planned(model, args, "100%")
    with pytest.raises(CaptureError, match="a part of it is not captured: PyTorch captures no"):
        plan.export(tmp_path / "step.py", model, args)
    assert not list(tmp_path.iterdir())


def test_another_model_or_file_is_refused(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    plan = planned(model, args)
    with pytest.raises(InvalidInputError, match="the plan is for another model"):
        plan.export(tmp_path / "step.py", nn.Linear(32, 5), args)
    with pytest.raises(InvalidInputError, match="the step is not the one that was planned"):
        plan.export(tmp_path / "step.py", model, (torch.randn(65, 32),))
    with pytest.raises(InvalidInputError, match="would hold a Python program, but is named as JSON"):
        plan.export(tmp_path / "step.json", model, args)
    with pytest.raises(MemschedError, match="cannot be written"):
        plan.export(tmp_path / "nowhere" / "step.py", model, args)
    assert not list(tmp_path.iterdir())


def test_a_program_refuses_what_it_was_not_made_for(tmp_path: Path) -> None:
    model, (tokens,) = models()["tied"]
    planned(model, (tokens,)).export(tmp_path / "step.py", model, (tokens,))
    program = Program(tmp_path / "step.py")
    program.step(model, tokens, loss=lambda out: out.sum())
    for said, given in {
        r"the input args\[0\] is \(3, 9\)": (tokens[:3],),
        "is .*torch.int32": (tokens.int(),),
        "takes 1 tensors, not 2": (tokens, tokens),
        "has strides": (tokens.t().contiguous().t(),),
    }.items():
        with pytest.raises(ValueError, match=said):
            program.run(model, *given)
    with pytest.raises(ValueError, match="not one number: give loss="):
        program.step(model, tokens)
    model.body.eval()
    with pytest.raises(ValueError, match="the module 'body' is in eval mode"):
        program.run(model, tokens)
    model.train()
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(ValueError, match="the model has 4 parameters, and the one that was planned 3"):
        program.run(model, tokens)
    model.body.bias = None
    with pytest.raises(ValueError, match=r"head.weight and embedding.weight must be one tensor"):
        program.run(model, tokens)


def test_backward_is_told_what_it_cannot_do(tmp_path: Path) -> None:
    model, args = models()["mlp"]
    planned(model, args).export(tmp_path / "step.py", model, args)
    program = Program(tmp_path / "step.py")
    out = program.run(model, *args).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once"):
        out.backward()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(program.run(model, *args).sum(), model.head.weight, create_graph=True)
    out = program.run(model, *args).sum()
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.backward()


class Counter(nn.Module):
    """Changes a buffer, and then reads its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.other = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.register_buffer("kept", torch.ones(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.mul_(2.0)
        out: torch.Tensor = self.other(self.norm(self.linear(x * 1.5))) + self.kept.sin()
        return out


def test_memory_that_is_shared_later_is_refused(tmp_path: Path) -> None:
    """The step would read its input after it has changed it, or keep two buffers where there is one."""
    model, x = Counter(), torch.randn(4, 8)
    planned(model, (x,)).export(tmp_path / "step.py", model, (x,))
    program = Program(tmp_path / "step.py")
    program.step(model, x, loss=lambda out: out.sum())
    with pytest.raises(ValueError, match=r"the step changes kept, which now shares memory with input args\[0\]"):
        program.step(model, model.kept, loss=lambda out: out.sum())
    with torch.no_grad(), pytest.raises(RuntimeError, match="under no_grad or inference_mode: call it outside"):
        program.step(model, x, loss=lambda out: out.sum())
    model.other.running_mean = model.norm.running_mean
    with pytest.raises(ValueError, match=r"the step changes (other|norm).running_mean, which now shares memory"):
        program.step(model, x, loss=lambda out: out.sum())
    model = Counter()
    with pytest.raises(CaptureError, match="reads the memory of a parameter, a buffer or an input"):
        planned(model, (model.kept.view(4, 8),)).export(tmp_path / "other.py", model, (model.kept.view(4, 8),))
