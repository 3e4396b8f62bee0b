"""`memsched export`: from a saved plan to a program."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import memsched.torch
from memsched.cli.app import OTHER, USAGE, command_line
from memsched.torch.preflight import fit_spec

SOURCE = """
import torch
from torch import nn

def make(width: int = 32):
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 1)), (torch.randn(64, width),)

def learns():
    model, (x,) = make(width=16)
    return model, (x.requires_grad_(),)

class Stopping(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.second(h)

def stops():
    return Stopping(), (torch.randn(4, 8),)
"""


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "nets_to_export.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nets_to_export", raising=False)
    module = importlib.import_module("nets_to_export")
    for name in ("make", "stops", "learns"):
        model, args = getattr(module, name)()
        memsched.torch.plan(model, args, budget="60%", device="v100:pcie3").save(f"{name}.json")
    return module


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, ["export", *arguments], prog_name="memsched")


def test_the_program_trains_the_model(nets: Any, tmp_path: Path) -> None:
    done = run("make.json", "--model", "nets_to_export.py:make", "-o", "step.py")
    assert done.exit_code == 0, done.output
    assert "saved in step.py" in done.output
    model, (x,) = nets.make()
    loss = loaded(tmp_path / "step.py").step(model, x, loss=torch.sum)
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    expected = model(x).sum()
    expected.backward()
    assert torch.equal(loss, expected)
    assert all(torch.equal(a, b.grad) for a, b in zip(found, model.parameters(), strict=True))


def test_an_input_that_needs_a_gradient_stays_so(nets: Any) -> None:
    """It was another step then: export refused its own plan, and fit left the gradient of the input out."""
    result = run("learns.json", "--model", "nets_to_export.py:learns", "-o", "step.py")
    assert result.exit_code == 0, result.output
    asked: dict[str, Any] = {"memory": "10MB", "device": "v100", "largest": False}
    named = fit_spec("nets_to_export.py:learns", **asked)
    given = memsched.torch.fit(*nets.learns(), **asked)
    assert named.steady == given.steady
    assert named.steady.gradients == 4 * (4 * (16 * 16 + 16) + 17 + 64 * 16)


def test_json_says_what_was_written() -> None:
    done = run("make.json", "--model", "nets_to_export.py:make", "-o", "step.py", "--json")
    plan = memsched.torch.TorchPlan.load("make.json")
    budget = plan.result.schedule.budget
    expected = {"program": "step.py", "planner": "selective", "budget": budget, "peak_memory": plan.peak_memory}
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["make.json", "--model", "nets_to_export.py:make?width=16"], USAGE, "parameter 0.weight is float32 32x32"),
        (["make.json", "--model", "nets_to_export.py:make", "--input", "8x32"], USAGE, "not the one that was planned"),
        (["stops.json", "--model", "nets_to_export.py:stops"], OTHER, "captured in 2 graphs, and a program holds one"),
        (["nowhere.json", "--model", "nets_to_export.py:make"], USAGE, "nowhere.json"),
        (["make.json", "--model", "nets_to_export.py:lack"], USAGE, "lack"),
        (["make.json"], USAGE, "--model"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: list[str], status: int, said: str, tmp_path: Path) -> None:
    done = run(*arguments, "-o", "step.py")
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert not (tmp_path / "step.py").exists()


def test_the_file_of_the_model_is_never_replaced(tmp_path: Path) -> None:
    done = run("make.json", "--model", "nets_to_export.py:make?width=32", "-o", "./nets_to_export.py")
    assert done.exit_code == USAGE
    assert "which holds the model" in done.stderr
    assert (tmp_path / "nets_to_export.py").read_text(encoding="utf-8") == SOURCE
    assert "named as JSON" in run("make.json", "--model", "nets_to_export.py:make", "-o", "step.json").stderr
