"""Plans written as programs: how tests run them, and the models that they try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memsched.torch
from memsched.torch import TorchPlan
from memsched.torch.meter import Meter
from memsched.torch.nests import tensors_of
from memsched.torch.trial import Step, first_difference, trial_step, untouched

CPU = torch.device("cpu")
PLANS = {"recompute only": 0, "with a link": "12GB/s"}


class Program:
    """An exported program, run in a namespace of its own; its planned functions are counted as those of memsched."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="ascii")
        self.names: dict[str, Any] = {"__name__": "exported"}
        exec(compile(self.text, str(path), "exec"), self.names)
        self.peak = 0
        meter = Meter("cpu")
        forward, backward = self.names["forward"], self.names["backward"]

        def counted_forward(params: Any, buffers: Any, *inputs: Any) -> Any:
            with meter:
                found = forward(params, buffers, *inputs)
            self.peak = max(self.peak, meter.peak)
            return found

        def counted_backward(saved: Any, gradients: Any) -> Any:
            meter.count(gradients)
            with meter:
                found = backward(saved, gradients)
            self.peak = max(self.peak, meter.peak)
            return found

        self.names.update(forward=counted_forward, backward=counted_backward)

    def run(self, model: nn.Module, *inputs: torch.Tensor) -> Any:
        return self.names["run"](model, *inputs)

    def step(self, model: nn.Module, *inputs: torch.Tensor, **more: Any) -> Any:
        return self.names["step"](model, *inputs, **more)


def tried(model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Step:
    with untouched(model, (args, kwargs)):
        torch.manual_seed(5)
        found = trial_step(model, forward, args, kwargs, CPU)
    return Step(outputs=found.outputs, gradients=found.gradients, buffers=found.buffers, random=found.random)


def check(
    model: nn.Module,
    args: Sequence[Any],
    folder: Path,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str = "60%",
    bandwidth: str | float = "12GB/s",
    plain: bool = True,
    applied: bool = False,
) -> Program:
    """The program computes what plain PyTorch does, or the applied plan, and holds no more than that."""
    plan = memsched.torch.plan(model, args, kwargs, budget=budget, bandwidth=bandwidth, device="v100:pcie3")
    plan.export(folder / "step.py", model, args, kwargs)
    program = Program(folder / "step.py")
    found = tried(model, lambda *a, **k: program.run(model, *tensors_of((a, k))), args, kwargs)
    assert not plain or first_difference(tried(model, model, args, kwargs), found) is None
    most = plan.verify(model, args, kwargs).peak_memory if applied else plan.peak_memory
    assert plan.plan.process_bytes(program.peak) <= most
    if applied:
        plan.apply(model)
        try:
            assert first_difference(tried(model, model, args, kwargs), found) is None
        finally:
            plan.remove()
    return program


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        out = self.head(x)
        return out if y is None else (nn.functional.cross_entropy(out, y), out)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act(self.norm(self.stem(x)))
        return self.head((x + self.body(x)).mean((2, 3)))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5)) for _ in range(4))
        self.noise = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.noise(x * torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.again = self.body

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.again(torch.tanh(self.body(self.embedding(tokens))))))


class Two(nn.Module):
    """Two results, and an input that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> dict[str, torch.Tensor]:
        h = torch.sigmoid(self.first(x)) * scale
        return {"h": h, "out": self.second(torch.sigmoid(h)).exp()}


def models() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    torch.manual_seed(0)
    return {
        "mlp": (Mlp(), (torch.randn(64, 32),)),
        "mlp with its loss": (Mlp(), (torch.randn(64, 32), torch.randint(0, 5, (64,)))),
        "cnn": (Cnn(), (torch.randn(4, 3, 12, 12),)),
        "channels last": (
            Cnn().to(memory_format=torch.channels_last),
            (torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last),),
        ),
        "dropout": (Dropping(), (torch.randn(48, 32),)),
        "tied": (Tied(), (torch.randint(0, 20, (4, 9)),)),
        "two results": (Two(), (torch.randn(32, 16, requires_grad=True),)),
    }


def transformer(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from memsched.torch import zoo

    transformers = pytest.importorskip("transformers")
    zoo.torchvision()
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
    if name == "llama":
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, **heads, **sizes)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes)
        model = transformers.GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # else it warns once, which breaks the graph
    tokens, mask = torch.randint(0, 50, (3, 16)), torch.ones(3, 16, dtype=torch.long)
    mask[1, :5] = 0
    return model.train(), {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def planned(model: nn.Module, args: Any, budget: str = "60%", **more: Any) -> TorchPlan:
    return memsched.torch.plan(model, args, budget=budget, device="v100:pcie3", **more)


class Calls(nn.Module):
    """A layer, and a function of it and of the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.kept: Any = torch.ones(8)
        self.count = 0
        self.told: list[int] = []
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)
