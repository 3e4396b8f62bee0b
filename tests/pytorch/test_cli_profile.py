"""`memsched profile`: from a model to a chain that `memsched plan` takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import memsched as ms
from memsched.cli.app import INFEASIBLE, OTHER, USAGE, command_line

SOURCE = """
import torch
from torch import nn

def small():
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(64, 32),)

def dependent():
    class Model(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x
    return Model(), (torch.ones(2),)

def raises():
    raise RuntimeError("no \\033[31mcolours")

def deep():
    return deep()

def ends():
    raise SystemExit(0)

def talks():
    print("made")
    return small()
"""

OTHERS = {"syntax": "def", "lacking": "import nowhere_at_all", "ending": "import sys; sys.exit(0)"}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "models_to_profile"
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf-8")
    for other, text in OTHERS.items():
        (tmp_path / f"{other}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, arguments, prog_name="memsched")


@pytest.mark.parametrize("device", ["v100", "here"])
def test_a_profile_is_a_problem(device: str) -> None:
    done = run("profile", "--model", "models_to_profile:small", "--device", device, "-o", "chain.json")
    assert done.exit_code == 0, done.output
    chain = ms.Chain.from_json("chain.json")
    assert chain.name == "small-64x32"
    assert "saved in chain.json" in done.output
    said = " ".join(done.output.split())
    assert chain.provenance is not None
    for fact in (f"stages {chain.n} ", f"{chain.resident:,}", f"{ms.peak_memory(chain):,}", chain.provenance["times"]):
        assert fact in said
    assert ("not a measurement" in done.output) == (device == "v100")
    planned = run("plan", "chain.json", "--memory", "40%", "--time-limit", "0.1", "-o", "result.json")
    assert planned.exit_code == 0, planned.output
    assert run("validate", "result.json").exit_code == 0
    assert run("plan", "chain.json", "--memory", "1kB").exit_code == INFEASIBLE


def test_json_and_nothing_else_and_the_file_is_replaced() -> None:
    Path("chain.json").write_text("old", encoding="utf-8")
    done = run("profile", "--model", "models_to_profile:small", "--device", "t4", "-o", "chain.json", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(Path("chain.json").read_text(encoding="utf-8"))
    again = run("profile", "--model", "models_to_profile:small", "--device", "t4", "--json")
    assert again.stdout == done.stdout


def test_what_a_model_prints_is_not_among_the_json() -> None:
    done = run("profile", "--model", "models_to_profile:talks", "--device", "t4", "--json")
    assert json.loads(done.stdout)["format"] == "memsched-chain/1"
    assert "made" in done.stderr


def test_autocast() -> None:
    options = ("profile", "--model", "models_to_profile:small", "--device", "h100", "--json")
    plain, half = (ms.Chain.from_json(json.loads(run(*options, *more).stdout)) for more in ((), ("--autocast", "bf16")))
    assert half.saved.sum() < plain.saved.sum()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--model", "models_to_profile:small", "--device", "v101"], USAGE, "no machine is named 'v101'"),
        (["--model", "models_to_profile:small", "--autocast", "fp8"], USAGE, "it must be bf16 or fp16"),
        (["--model", "models_to_profile:small", "--seed", "-1"], USAGE, "seed is -1"),
        (["--model", "models_to_profile:small", "--input", "2x", "--device", "v100"], USAGE, "the input is '2x'"),
        (["--model", "models_to_profile:none"], USAGE, "'none'"),
        (["--model", "resnet18"], USAGE, "the model is 'resnet18'"),
        (["--input", "2x2"], USAGE, "--model"),
        (["--model", "models_to_profile:dependent", "--device", "v100"], OTHER, "Model looks at values of tensors"),
        (
            ["--model", "models_to_profile:raises"],
            USAGE,
            "make its model: RuntimeError: no \\x1b[31mcolours (models_",
        ),
        (["--model", "models_to_profile:deep"], USAGE, "RecursionError"),
        (["--model", "models_to_profile:ends"], USAGE, "SystemExit: 0"),
        (["--model", "syntax:any"], USAGE, "the module 'syntax' cannot be imported: SyntaxError"),
        (["--model", "lacking:any"], USAGE, "No module named 'nowhere_at_all'"),
        (["--model", "ending:any"], USAGE, "SystemExit: 0"),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], status: int, message: str) -> None:
    done = run("profile", *options, "-o", "chain.json")
    assert done.exit_code == status, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert done.stdout == ""
    assert set(os.listdir()) <= {"models_to_profile.py", "__pycache__", *(f"{name}.py" for name in OTHERS)}
    told = json.loads(run("profile", *options, "--json").stdout)
    assert message in told["error"]["message"] or "\\x1b" in message


def test_where_nothing_can_be_written_nothing_is_done() -> None:
    done = run("profile", "--model", "nowhere:nothing", "-o", "missing/chain.json")
    assert done.exit_code == USAGE
    assert "'missing' is not a directory" in done.stderr


def test_without_torch_one_sentence_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; from memsched.cli import main; main()"
    command = [sys.executable, "-c", code, "profile", "--model", "models_to_profile:small"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (OTHER, "")
    assert done.stderr == "error: profiling a model needs PyTorch: pip install 'memsched[torch]'\n"
