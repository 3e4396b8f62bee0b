"""What `fit`, plans and their errors say."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import memsched as ms
import memsched.torch
from memsched.cli.app import command_line
from memsched.torch.compiled import times
from memsched.torch.errors import CallError
from memsched.torch.preflight import fit_spec

pytestmark = pytest.mark.usefixtures("few_moves")


def layers(width: int = 32, depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def test_completion_offers_what_is_public() -> None:
    names = {one for one in dir(memsched.torch) if not one.startswith("__")}
    assert names == set(memsched.torch.__all__)


def test_the_remedy_of_a_type_is_for_inputs_of_another() -> None:
    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no such dtype")

    for dtype, words in ((torch.float32, "model.* and its backward run by themselves"), (torch.float64, "convert the")):
        with pytest.raises(CallError, match=words):
            memsched.torch.fit(Wrong(8, 8), (torch.randn(4, 8, dtype=dtype),), memory="1MB", device="t4")


class Looks(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 2 if y.sum().item() > 0 else y


def test_what_cannot_be_captured_has_a_remedy(caplog: pytest.LogCaptureFixture) -> None:
    asked: dict[str, Any] = {"memory": "1MB", "device": "t4"}
    logger = logging.getLogger("torch._dynamo.variables.tensor")
    with caplog.at_level(logging.WARNING):
        with pytest.raises(
            memsched.torch.CaptureError, match="let what PyTorch captures of it be planned while it trains"
        ):
            memsched.torch.fit(Looks(8, 8), (torch.randn(4, 8),), **asked)
        with pytest.raises(
            memsched.torch.CaptureError, match="let what PyTorch captures of it be planned while it trains"
        ):
            memsched.torch.plan(Looks(8, 8), (torch.randn(4, 8),), budget="1MB", device="t4")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert not logger.disabled
    with pytest.raises(memsched.torch.CaptureError, match="plan modules that it captures, each by itself"):
        memsched.torch.fit(nn.LSTM(8, 8), (torch.randn(4, 2, 8),), **asked)


def test_times_that_others_disturbed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for running, words in (
        (0.3, "too long: the thread waited 70% of the time, as where others take the cores"),
        (0.95, "on this CPU"),
    ):
        monkeypatch.setattr(times, "_measured", {})
        monkeypatch.setattr(times, "_once", lambda *args, running=running: (1.0, running))
        plan = memsched.torch.plan(layers(), (torch.randn(8, 32),), budget="1GB")
        assert plan.plan.times.endswith(words) or f"{words}; set OMP_NUM_THREADS=1" in plan.plan.times
        assert plan.plan.times.startswith("measured on this CPU")


def test_a_thread_that_runs_alone_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread its own clock counts."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    seconds, running = times._once(sum, [range(10**5)], {})
    assert seconds == running > 0


def test_the_report_reads_as_english() -> None:
    model, x = layers(64, 8), torch.randn(256, 64)
    said = memsched.torch.plan(model, (x,), budget="60%", device="v100", bandwidth=0).report()
    assert "  everything kept  " in said
    assert ", on all plans: this plan is " in said
    assert " in 0 tensors\n" in said
    one = memsched.torch.plan(nn.Linear(8, 8), (torch.randn(4, 8),), budget="1GB", device="v100").report()
    assert "without plan" not in one
    assert "no plan can" not in one


def test_a_fit_is_told_in_lines() -> None:
    """The code to copy was in the middle of one."""
    model = layers(64, 10)
    found = memsched.torch.fit(model, (torch.randn(512, 64),), memory="1.7MB", device="v100", largest=False)
    assert found.next_step in str(found).splitlines()
    assert found.times in str(found).splitlines()
    assert found._repr_html_().count('<p class="faint">') >= 3


def test_a_smaller_batch_is_no_remedy_where_the_update_alone_is_too_large() -> None:
    model, x = layers(64, 4), torch.randn(256, 64)
    adam = torch.optim.AdamW(model.parameters())
    asked: dict[str, Any] = {"device": "t4", "bandwidth": 0, "largest": False}
    found = memsched.torch.fit(model, (x,), memory="200kB", optimizer=adam, **asked)
    unless = "unless the optimizer's state is on the host"
    assert f"; no smaller batch helps {unless}: the optimizer's step alone needs " in found.next_step
    assert "or a smaller batch" not in found.next_step
    found = memsched.torch.fit(model, (x,), memory="100kB", **asked)
    assert "; no smaller batch helps: parameters and gradients alone need " in found.next_step
    assert replace(found, memory=200_000, ways=found.ways[:1]).next_step.endswith("; or a smaller batch")


def test_progress_is_told() -> None:
    said: list[str] = []
    x = torch.randn(8, 32)
    memsched.torch.fit(layers(), (x,), memory="27kB", device="v100", time_limit=1, progress=said.append)
    assert said[0] == "counting the bytes of a step of 8 samples"
    assert "capturing a step of 8 samples" in said
    assert "planning recompute" in said
    assert any(one.startswith("largest batch, plain: counting the bytes of a step of ") for one in said)
    with pytest.raises(ms.InvalidInputError, match="progress is 1"):
        memsched.torch.fit(layers(), (x,), memory="40kB", progress=1)  # type: ignore[arg-type]  # wrong on purpose


def test_a_loss_within_the_model_needs_no_other() -> None:
    class Learner(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    x = torch.randn(16, 8)
    plan = memsched.torch.plan_step(Learner(8, 8), (x,), budget="100%", device="t4", planner="selective")
    assert plan.step(x).dim() == 0
    with pytest.raises(ms.InvalidInputError, match="the model returns no loss"):
        memsched.torch.plan_step(nn.Linear(8, 8), (x,), budget="100%", device="t4", planner="selective")


def test_what_is_not_counted_has_a_remedy(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 32)
    found = memsched.torch.fit(layers(), (x,), memory="1MB", device="t4", largest=False)
    assert found.assumed == (
        "no optimizer was given, and none is counted; give optimizer=...",
        "no loss was given, and none is counted; give loss=..., or a model that returns it",
    )
    (tmp_path / "own.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(64, 64), (torch.randn(8, 64),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    given = ["fit", "--model", "own:make", "--device", "v100", "-m", "1MB", "--no-largest"]
    said = CliRunner().invoke(command_line, given, env={"COLUMNS": "200"}).output
    assert "none is counted; give --optimizer ...\n" in said
    assert "none is counted; give --loss FILE.py:FUNCTION, or a model that returns it" in said


def test_a_loss_is_named_as_a_model_is(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(64, 64), (torch.randn(8, 64),)\n"
        "def loss(out):\n    return out.square().mean()\n"
    )
    monkeypatch.chdir(tmp_path)

    def said(loss: str, status: int = 0) -> str:
        given = ["fit", "--model", "nets.py:make", "--device", "v100", "-m", "1MB", "--no-largest", "--loss", loss]
        found = CliRunner().invoke(command_line, given, env={"COLUMNS": "200"})
        assert found.exit_code == status, found.output
        return found.output

    assert "no loss was given" not in said("nets.py:loss")
    model, x = nn.Linear(64, 64), torch.randn(8, 64)
    asked: dict[str, Any] = {"memory": "1MB", "device": "v100", "largest": False}
    of_results = memsched.torch.fit(model, (x,), loss=lambda out: out.square().mean(), **asked)
    named = fit_spec("nets.py:make", loss="nets.py:loss", **asked)
    assert replace(named, assumed=()) == replace(of_results, assumed=())
    assert "the module 'nets' has no function 'los'; near: loss" in said("nets.py:los", 2)
    assert "the loss 'net.py:loss' names the file 'net.py', which is not here" in said("net.py:loss", 2)
    assert "the loss 'nowhere:loss' names no module 'nowhere'" in said("nowhere:loss", 2)
    assert "the loss is 'cross_entropy'; write my.module:function or file.py:function" in said("cross_entropy", 2)
    assert "the loss is 'torchvision:resnet18'; write my.module:function" in said("torchvision:resnet18", 2)
