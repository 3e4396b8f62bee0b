"""Models that are planned with hooks for saved tensors, and steps of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import memsched as ms
from memsched.torch.hooked.forward import HookedForward
from memsched.torch.hooked.plan import HookedPlan, plan_with_hooks
from memsched.torch.measure import StepRecorder
from memsched.torch.meter import Meter
from memsched.torch.script import compile_schedule
from memsched.torch.trial import first_difference, trial_step, untouched
from pytorch.models import CASES

CPU = torch.device("cpu")
SLACK = 64  # bytes: scalars that autograd and the loss make
Made = tuple[Any, tuple[Any, ...]]


class Branching(nn.Module):
    """Takes a way that depends on its input; one of them saves more and larger tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
        self.last = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Any) -> Any:
        for layer in self.first:
            x = layer(x).tanh() + x
        if x.mean() > 0:
            x = x.sigmoid()
        elif x.mean() > -50:
            x = self.wide(x)
        for layer in self.last:
            x = layer(x).tanh() + x
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.inner(x)[0])


class Chunks(nn.Module):
    """Views of one storage that do not share a version counter are written one after the other once saved."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 32) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            gate, value = layer(x).unsafe_chunk(2, 1)
            x = gate.sigmoid_() * value.tanh_() + x
        return x


class Shared(nn.Module):
    """Dropout, a tensor that is saved by many, and a result that is saved itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Any) -> dict[str, Any]:
        kept = []
        for layer in self.layers:
            x = nn.functional.dropout(torch.relu_(layer(x)), 0.3)
            kept.append(x * x.mean())
        return {"last": x.exp(), "all": torch.stack(kept)}


def case(name: str) -> Made:
    return {one.name: one for one in CASES}[name].make()


def branching() -> Made:
    return Branching().train(), (torch.ones(16, 32),)


MODELS: dict[str, Callable[[], Made]] = {
    "data_dependent": lambda: case("data_dependent"),
    "opt": lambda: case("transformers-opt"),
    "lstm": lambda: (Recurrent().train(), (torch.randn(4, 6, 8),)),
    "resnet18": lambda: case("torchvision-resnet18"),
    "branching": branching,
    "chunks": lambda: (Chunks().train(), (torch.randn(8, 16),)),
    "shared": lambda: (Shared().train(), (torch.randn(8, 16, requires_grad=True),)),
}


def planned(model: Any, args: Any, budget: str | int = "0%", **options: Any) -> HookedPlan:
    """A plan on modelled times, without the warning."""
    options = {"device": "v100:pcie3", "planner": "greedy", "reason": "the test wants it", **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_with_hooks(model, args, budget=budget, **options)


def gradients(model: Any, args: Any, forward: Any = None) -> list[Any]:
    """The result and the gradients of a step from a fixed seed."""
    torch.manual_seed(1)
    model.zero_grad()
    result = (forward or model)(*args)
    result.square().mean().backward()
    return [result.detach(), *(p.grad for p in model.parameters())]


def same(one: list[Any], other: list[Any]) -> bool:
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check_schedule(plan: HookedPlan, schedule: ms.Schedule, model: Any, args: Any, want: Any, lanes: Any) -> int:
    """One measured step under a schedule; how many bytes it stayed under the schedule's budget."""
    script = compile_schedule(plan.chain, schedule, plan.chain.pieces)
    forward = HookedForward(model, plan.flow, script, CPU, lanes)
    meter = Meter()
    recorder = StepRecorder(script, lanes, meter, CPU)
    forward.observe = lambda: recorder
    with untouched(model, CPU), meter:
        found = trial_step(model, forward, args, None, CPU)
    assert first_difference(want, found) is None
    return int(schedule.budget - recorder.timeline(plan._uncounted()).peak_memory)


def plain(model: Any, args: Any) -> Any:
    with untouched(model, CPU):
        return trial_step(model, model, args, None, CPU)
