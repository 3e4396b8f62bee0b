"""What a new user reads and calls after planning: models on meta, least budgets, other models, what is shown."""

from __future__ import annotations

import contextlib
import html
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

import memsched as ms
import memsched.torch
from memsched.torch.compiled.look import look
from memsched.torch.compiled.options import read_options
from memsched.torch.errors import CallError, CaptureError
from memsched.torch.preflight import fit_spec

V100 = "v100:pcie3"


def blocks(depth: int = 3, width: int = 64) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def planned(model: nn.Module | None = None, **more: Any) -> memsched.torch.TorchPlan:
    given: dict[str, Any] = {"budget": "80%", "device": V100, "bandwidth": 0, **more}
    return memsched.torch.plan(model or blocks(), (torch.randn(256, 64),), **given)


class Net(nn.Module):
    """Layers, and what makes a result of theirs."""

    def __init__(self, last: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), last

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x), *rest)


def linear(last: Callable[..., torch.Tensor]) -> Net:
    return Net(last, nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32))


def square(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


def attention(x: torch.Tensor) -> torch.Tensor:
    x = x.view(2, 4, 4, 8)
    return square(scaled_dot_product_attention(x, x, x, is_causal=True))


def image(*shape: int) -> torch.Tensor:
    return torch.randn(8, 3, 8, 8)


def classes() -> torch.Tensor:
    return torch.zeros(8, dtype=torch.long)


def likely() -> torch.Tensor:
    return torch.rand(8, 32)


def rows() -> torch.Tensor:
    return torch.randn(8, 16)


def tokens() -> torch.Tensor:
    return torch.zeros(4, 5, dtype=torch.long)


NETS: dict[str, tuple[Callable[[], Net], tuple[Callable[[], torch.Tensor], ...]]] = {
    "cross_entropy": (lambda: linear(functional.cross_entropy), (rows, classes)),
    "smoothed": (lambda: linear(lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1)), (rows, classes)),
    "mse": (lambda: linear(functional.mse_loss), (rows, likely)),
    "l1": (lambda: linear(functional.l1_loss), (rows, likely)),
    "huber": (lambda: linear(functional.huber_loss), (rows, likely)),
    "bce": (lambda: linear(lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y)), (rows, likely)),
    "kl": (lambda: linear(lambda x, y: functional.kl_div(x.log_softmax(1), y)), (rows, likely)),
    "multi_margin": (lambda: linear(functional.multi_margin_loss), (rows, classes)),
    "embedding": (
        lambda: Net(square, nn.Embedding(10, 16), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 8)),
        (tokens,),
    ),
    "convolution": (
        lambda: Net(functional.cross_entropy, nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        (image, classes),
    ),
    "attention": (lambda: linear(attention), (rows,)),
    "result": (lambda: linear(lambda x: x), (rows,)),
}


def facts(net: str, device: str) -> tuple[Any, ...]:
    make, inputs = NETS[net]
    with torch.device(device):
        model, args = make(), [one() for one in inputs]
    seen = look(model, args, {}, read_options({"budget": "100%", "device": V100}))
    operations = [str(op.node.target) for visit in seen.visits for op in visit.joint.operations]
    return operations, seen.resident, sum(visit.gradient_bytes for visit in seen.visits), seen.unplanned


@pytest.mark.parametrize("net", NETS)
def test_a_model_on_meta_has_the_graph_that_it_has_on_the_cpu(net: str) -> None:
    """PyTorch decomposes otherwise on meta: cross_entropy lost its backward, and nobody was told."""
    assert facts(net, "meta") == facts(net, "cpu")


def test_what_fit_counts_on_meta_is_what_it_counts_on_the_cpu() -> None:
    def steady(device: str) -> object:
        with torch.device(device):
            model, args = linear(functional.cross_entropy), (rows(), classes())
        adam = torch.optim.AdamW(model.parameters())
        return memsched.torch.fit(model, args, device=V100, optimizer=adam, largest=False).steady

    assert steady("meta") == steady("cpu")


def test_a_trace_without_a_gradient_that_autograd_needs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memsched.torch.compiled.look.meta_as_cpu", contextlib.nullcontext)
    with torch.device("meta"):
        model, args = linear(functional.cross_entropy), (rows(), classes())
    with pytest.raises(CaptureError, match=r"has no gradient of l_model_modules_layers.*weight_ and 3 more"):
        memsched.torch.plan(model, args, budget="100%", device=V100)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * 2, None


def test_a_gradient_that_the_user_leaves_out_is_not_missed() -> None:
    model = blocks(1)
    model.register_parameter("scale", nn.Parameter(torch.ones(64)))
    model.forward = lambda x: Scaled.apply(model[0](x), model.scale)  # type: ignore[method-assign]  # for one test
    assert memsched.torch.plan(model, (torch.randn(8, 64),), budget="100%", device=V100).graph.ops


@pytest.mark.parametrize("budget", ["0%", "5%", "1kB"])
def test_at_names_the_least_that_plan_names(budget: str) -> None:
    model = blocks(6)
    made = planned(model)
    said = []
    for call in (made.at, lambda one: planned(model, budget=one)):
        with pytest.raises(ms.InfeasibleError) as caught:
            call(budget)
        said.append((caught.value.min_memory, str(caught.value)))
    assert said[0] == said[1]
    assert said[0][0] < ms.peak_memory(made.graph)
    assert made.at(said[0][0]).peak_memory <= said[0][0]


def test_a_frontier_has_as_many_points_as_asked() -> None:
    found = planned(blocks(6)).frontier(4)
    budgets = [one.result.schedule.budget for one in found]
    assert len(budgets) == 4
    assert budgets == sorted(budgets)
    assert budgets[-1] == ms.peak_memory(found[0].graph)


def test_an_optimizer_of_another_model_is_told() -> None:
    other = torch.optim.Adam(nn.Linear(3, 3).parameters())
    model, args = blocks(), (torch.randn(256, 64),)
    words = "optimizer is Adam, and none of its parameters is one of Sequential's"
    with pytest.raises(ms.InvalidInputError, match=words):
        planned(model, optimizer=other)
    with pytest.raises(ms.InvalidInputError, match=words):
        memsched.torch.fit(model, args, memory="6MB", device=V100, optimizer=other, largest=False)
    twin = torch.optim.Adam(blocks().parameters())  # of another instance
    with pytest.raises(ms.InvalidInputError, match="or a copy of it; give one that was built with"):
        planned(model, optimizer=twin)
    own = torch.optim.Adam([*model.parameters(), *blocks(1).parameters()])
    assert planned(model, optimizer=own).resident.optimizer > 0
    masters = torch.optim.Adam([one.detach().double().requires_grad_() for one in model.parameters()])
    assert planned(model, optimizer=masters).resident.optimizer > 0
    step = torch.compile(model, backend="memsched", options={"budget": "100%", "optimizer": other})
    step(*args)  # no backward follows
    with pytest.warns(UserWarning, match="optimizer is Adam, which trains no parameter of what is compiled"):
        step(*args).sum().backward()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "optimizer is")
        step(*args).sum().backward()  # it is told once


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's, where it breaks
def test_an_optimizer_may_train_one_of_several_graphs() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 48))
            self.second = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 7))

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x)

    model = Broken()
    optimizer = torch.optim.AdamW(model.second.parameters())
    step = torch.compile(model, backend="memsched", options={"budget": "100%", "optimizer": optimizer})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "optimizer is")
        for _ in range(3):
            step(torch.randn(64, 64)).square().mean().backward()


def test_a_report_says_that_no_optimizer_is_counted() -> None:
    words = "no optimizer was given, and none is counted"
    model = blocks()
    step = memsched.torch.plan_step(model, (torch.randn(256, 64),), torch.sum, budget="100%", device=V100)
    assert words in planned(model).report()
    assert words in step.report()
    assert words not in planned(model, optimizer=torch.optim.SGD(model.parameters())).report()
    adam = torch.optim.Adam(model.parameters())
    for options, said in (({}, True), ({"optimizer": adam}, False)):
        compiled = torch.compile(model, backend="memsched", options={"budget": "100%", **options})
        compiled(torch.randn(256, 64)).sum().backward()
        assert ("no state of an optimizer" in memsched.torch.plans()[-1].report()) is said


def test_a_plan_is_not_applied_to_another_model() -> None:
    made = planned()
    frozen = blocks()
    frozen[0].requires_grad_(False)
    for other, words in (
        (nn.Linear(3, 3), r"its parameter 0\.0\.weight is float32 64x64, and that of this Linear is not there"),
        (blocks(3).double(), r"0\.0\.weight is float32 64x64, and that of this Sequential is float64 64x64"),
        (frozen, r"float32 64x64, and that of this Sequential is float32 64x64, frozen"),
        (blocks(4), r"3\.0\.weight is not there"),
    ):
        for one in (made, memsched.torch.TorchPlan.load(made.to_json())):
            with pytest.raises(ms.InvalidInputError, match=words):
                one.apply(other)
    document = made.to_json()
    del document["parameters"]  # as 0.1.0 wrote it
    old = memsched.torch.TorchPlan.load(document)
    old.apply(blocks(4))
    old.remove()


def test_plans_are_named_after_the_model_and_shown_as_tables() -> None:
    model, args = linear(square), (rows(),)
    given: dict[str, Any] = {"budget": "100%", "device": V100}
    made = memsched.torch.plan(model, args, **given)
    step = memsched.torch.plan_step(model, args, lambda value: value, **given)
    for one in (made, memsched.torch.TorchPlan.load(made.to_json()), made.plan, step):
        assert str(one).splitlines()[0].endswith(" on Net")
        assert len(str(one).splitlines()) > 5
        assert "<table>" in one._repr_html_()
    made.apply(model)
    model(*args).backward()
    assert memsched.torch.plans()[-1].result.schedule.steps == made.result.schedule.steps
    made.remove()


def test_a_model_that_returns_its_loss_lacks_none() -> None:
    def assumed(last: Callable[..., torch.Tensor]) -> tuple[str, ...]:
        return memsched.torch.fit(linear(last), (rows(),), device=V100, largest=False).assumed

    assert not any("no loss" in one for one in assumed(square))
    assert any("no loss" in one for one in assumed(lambda x: x))


def test_fit_is_shown_in_the_unit_of_the_user_and_its_code_whole() -> None:
    model = blocks(8)
    args = (torch.randn(256, 64),)
    found = memsched.torch.fit(model, args, memory="850kB", device=V100, largest=False)
    assert "936 kB do not fit into 850 kB" in str(found)
    assert "iB" not in str(found).split("\n", 1)[0]
    assert found.next_step in str(found)
    assert 'torch.compile(model, backend="memsched"' in found.next_step
    assert "torch.compile(model, backend=&quot;memsched&quot;" in found._repr_html_()
    assert html.escape(found.next_step.rpartition("options=")[2]) in found._repr_html_()
    axes = found.plot().axes[0]
    assert axes.get_xlabel().endswith("(kB)")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: planned(planner="rotor"), "planner is 'rotor', which plans chains, .* give one of auto, .*selective"),
        (
            lambda: memsched.torch.plan(blocks(), (torch.randn(2, 64),), "50%"),  # type: ignore[call-arg, arg-type]  # wrong on purpose
            r"kwargs is '50%'; did you mean budget='50%'\?",
        ),
        (
            lambda: memsched.torch.plan(nn.Sequential(nn.Conv2d(3, 4, 3)), ((8, 3, 32, 32),), budget="50%"),
            r"args\[0\] is a tuple of numbers: give a tensor, such as torch\.randn\(8, 3, 32, 32\)",
        ),
        (
            lambda: planned(optimizer=torch.optim.Adam(nn.Linear(3, 5).parameters())),
            "optimizer is Adam, and none of its parameters is one of Sequential's: it was built for another model",
        ),
        (
            lambda: memsched.torch.plan(torch.compile(blocks(), backend="eager"), (torch.randn(2, 64),), budget="50%"),  # type: ignore[arg-type]  # wrong on purpose
            r"the model is what torch\.compile returned; give the module that it was made of",
        ),
        (
            lambda: memsched.torch.plan_step(blocks(), (torch.randn(8, 64),), lambda out: out, budget="50%"),
            r"loss returns a tensor of shape \(8, 64\); it must return one number",
        ),
        (lambda: fit_spec("torchvision:resnet18", device=V100, optimizer="sgd?momentun=0.9"), "did you mean momentum?"),
    ],
)
def test_a_mistake_names_its_remedy(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ms.InvalidInputError, match=words):
        call()


def test_arguments_may_all_have_names() -> None:
    model, named = blocks(1), {"input": torch.randn(256, 64)}
    assert memsched.torch.plan(model, kwargs=named, budget="100%", device=V100).graph.ops
    assert memsched.torch.fit(model, kwargs=named, device=V100, largest=False).fits


def test_the_command_tells_of_its_work_and_of_its_options(tmp_path: Any) -> None:
    source = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8))\n"
    (tmp_path / "tokens.py").write_text(source)
    asked = [sys.executable, "-m", "memsched", "fit", "--model", "tokens.py:make", "--device", "v100", "--no-largest"]

    def run(*more: str) -> str:
        done = subprocess.run(
            [*asked, *more], cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ}
        )
        return " ".join(done.stderr.split())

    assert "looking at tokens.py:make: counting its bytes" in (said := run("--input", "4x8"))
    assert "input=4x8:int:100 for numbers below 100, or 4x8:int where the model names its vocabulary" in said
    assert "--memory is '40%'; give a size, such as 80GiB" in run("--input", "4x8:int:9", "--memory", "40%")


def test_inputs_on_another_device_are_told() -> None:
    with torch.device("meta"):
        model = blocks()
    with pytest.raises(CallError, match="model and inputs are on cpu and meta: put them on one device"):
        memsched.torch.plan(model, (torch.randn(256, 64),), budget="100%", device=V100)


def test_a_plan_has_the_rows_of_its_result() -> None:
    found = memsched.torch.plan(blocks(8), (torch.randn(256, 64),), budget="50%", device=V100)
    assert found.to_pandas().equals(found.result.to_pandas())


def test_a_plan_far_above_its_bound_says_what_may_help() -> None:
    given: dict[str, Any] = {"device": V100, "bandwidth": 0}
    far = memsched.torch.plan(blocks(12), (torch.randn(256, 64),), budget="27%", **given)
    assert far.result.gap > 0.05
    assert "time_limit=10 may find a faster one" in far.report()
    near = memsched.torch.plan(blocks(12), (torch.randn(256, 64),), budget="100%", **given)
    assert "may find a faster one" not in near.report() + far.at(far.result.schedule.budget, time_limit=0.2).report()


def test_bytes_are_told_in_the_unit_of_the_budget(tmp_path: Path) -> None:
    model, args = blocks(4), (torch.randn(64, 64),)
    made = memsched.torch.plan(model, args, budget="900kB", bandwidth=0)
    assert re.search(r"; \d+(\.\d+)? kB \([\d,]+ bytes\) at the peak$", str(made.verify(model, args)))
    made.export(tmp_path / "step.py", model, args)
    assert "# for 900 kB (900,000 bytes): at most " in (tmp_path / "step.py").read_text(encoding="utf-8")
