"""The algorithms of convolutions, as they are measured."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.errors import InvalidInputError, MemschedError
from memsched.torch import CaptureError, algorithms, convolutions, plan
from memsched.torch.compiled.calls import bound
from memsched.torch.compiled.look import look
from memsched.torch.compiled.options import Options
from memsched.torch.compiled.times import _arguments, _filled, alone
from memsched.torch.errors import CallError
from memsched.torch.nests import tensors_of

CONVOLUTIONS = ("convolution", "convolution_backward")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


X = torch.ones(16, 3, 24, 24)


def choices_of(graph: ms.Graph) -> dict[str, dict[str, Any]]:
    found = {op["name"]: {one["alg"]: one for one in op["choices"]} for op in graph.ops if op["kind"] in CONVOLUTIONS}
    assert found
    return found


def test_each_convolution_has_what_the_cpu_offers() -> None:
    model = network()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    graph = algorithms(model, (X,))
    found = choices_of(graph)
    assert len(found) == 4
    assert all(list(one) == ["default", "gemm", "by sample"] for one in found.values())
    assert all(one["time"] > 0 for choices in found.values() for one in choices.values())
    for name, channels in (("convolution", 3), ("convolution_1", 64)):  # the patches of all samples, in float32
        assert found[name]["gemm"]["workspace"] >= 4 * len(X) * channels * 9 * 24 * 24
    assert found["convolution_1"]["by sample"]["workspace"] < found["convolution_1"]["gemm"]["workspace"]
    others = [op for op in graph.ops if op["kind"] not in CONVOLUTIONS]
    assert all([one["alg"] for one in op["choices"]] == ["plain"] for op in others)
    # Otherwise it is the graph of a look: the same tensors, and ops in the same order.
    known = plan(network(), (X,), budget="100%").graph
    assert [(op["name"], op["reads"], op["writes"]) for op in graph.ops] == [
        (op["name"], op["reads"], op["writes"]) for op in known.ops
    ]
    assert graph.tensors == known.tensors
    assert graph.resident == known.resident
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1),
        lambda: nn.Conv2d(6, 6, 5, padding=2, groups=6, bias=False),
        lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1),
        lambda: nn.Conv2d(6, 8, 3, dilation=2, padding_mode="circular", padding=2),
        lambda: nn.Conv2d(6, 8, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_algorithms_compute_the_same(layer: Any, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), layer()).to(dtype)  # so that the input needs its gradient
    (visit,) = look(model, (torch.ones(5, 3, 12, 12, dtype=dtype),), {}, Options(budget="100%")).visits
    tried = 0
    for op in visit.joint.operations:
        if op.node.target not in convolutions.CONVOLUTIONS:
            continue
        torch.manual_seed(op.number)
        args, kwargs = _arguments(op.node, lambda one: _filled(one, visit.sizes), visit.sizes)
        results = []
        for _, around, change in convolutions._ways(op.node):
            with torch.no_grad(), around():
                results.append(tensors_of(change(bound(op.node))(*args, **kwargs)))
        exact = results[0]
        for other in results[1:]:
            assert len(other) == len(exact)
            for a, b in zip(exact, other, strict=True):
                torch.testing.assert_close(a, b, rtol=0.02 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)
        tried += len(results)
    assert tried == 4 * 3


def test_modnn_chooses_among_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def more_is_faster(*given: Any) -> tuple[float, int]:  # whatever else the machine does
        workspace = alone(*given)[1]
        return 1e-3 / (1e6 + workspace), workspace

    monkeypatch.setattr(convolutions, "alone", more_is_faster)
    graph = algorithms(network(), (X,))
    found = choices_of(graph)
    least = ms.min_memory(graph, "modnn")
    tight, ample = (ms.modnn(graph, memory, "12GB/s") for memory in (least, 10 * ms.peak_memory(graph)))
    for result in (tight, ample):
        ms.validate(result)
    chosen = [
        {step["run"]: step.get("alg") for step in result.schedule.steps if step.get("run") in found}
        for result in (tight, ample)
    ]
    fastest = {name: min(choices.values(), key=lambda one: one["time"])["alg"] for name, choices in found.items()}
    assert chosen[1] == fastest
    scratch = [sum(found[name][alg]["workspace"] for name, alg in one.items()) for one in chosen]
    assert scratch[0] < scratch[1]


@pytest.mark.parametrize("batch", [0, 1])
def test_few_samples_or_none(batch: int) -> None:
    assert all(len(one) == 3 for one in choices_of(algorithms(network(), (X[:batch],))).values())


def test_a_loss_is_a_part_of_the_step() -> None:
    graph = algorithms(network(), (X,), loss=lambda result: result.square().mean())
    assert any(op["kind"] == "pow" for op in graph.ops)


class Breaks(nn.Module):
    """A step of which PyTorch leaves a part out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.LSTM(22, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.first(x)
        torch._dynamo.graph_break()
        return self.second(found.flatten(0, 2))[0]


def test_wrong_calls_are_told() -> None:
    with pytest.raises(CaptureError, match="a part of it is not captured"):
        algorithms(Breaks(), (X,))
    with pytest.raises(InvalidInputError, match=r"eval mode; call model\.train"):
        algorithms(network().eval(), (X,))
    with torch.autograd.profiler.profile(use_kineto=False), pytest.raises(MemschedError, match="a profiler of PyTorch"):
        algorithms(network(), (X,))
    with pytest.raises(CallError, match="cannot run on float32 16x2x24x24"):
        algorithms(network(), (X[:, :2],))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="the networks are torchvision's")
def test_the_benchmark_runs(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "bench.papers.modnn2018_measured", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(call, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "modnn2018_measured.md").read_text(encoding="utf-8")
    assert report.count("| torchvision:resnet18 |") == 6
