"""Small models for whole training steps as graphs, their plain steps, and the plans to compare them with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import memsched as ms
from memsched.torch import zoo
from memsched.torch.graph_step.captured import CapturedStep
from memsched.torch.graph_step.runner import StepRunner
from memsched.torch.lanes import EmulatedLanes, Lanes
from pytorch import handmade
from pytorch.steps import Outcome, buffers_restored, outcome

Made = tuple[nn.Module, tuple[Any, ...]]
SPEED = 1e12  # with operations of a second, transfers take next to no time
PLANNERS = ("pooch", "swap_opt", "swap_all", "superneurons", "vdnn_sync", "modnn", "autoswap", "tflms", "vdnn_plus")


class Residual(nn.Module):
    """Two convolutions and a skip, one of them strided; activations are overwritten where they stand."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(channels, out, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.first(x)), inplace=True)
        y = self.norm2(self.second(y))
        y += self.skip(x)
        return F.relu(y, inplace=True)


def residual() -> Made:
    blocks = (Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
    stem = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return model, (torch.randn(6, 3, 16, 16),)


class Block(nn.Module):
    """Attention and two layers, with dropout in both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        q, k, v = self.query(self.norm1(x)).chunk(3, dim=-1)
        weight = F.dropout(torch.softmax(q @ k.transpose(-1, -2) / 4, dim=-1), 0.1, self.training)
        x = x + self.drop(self.out(weight @ v))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


def transformer() -> Made:
    return nn.Sequential(Block(16), Block(16), nn.Linear(16, 7)), (torch.randn(4, 6, 16),)


class TwoTowers(nn.Module):
    """Several inputs, one of them whole numbers; a frozen layer, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen, self.idle = nn.Linear(8, 8).requires_grad_(False), nn.Linear(3, 3)
        self.shift = nn.Parameter(torch.randn(4, 5, 8))

    def forward(self, ids: Any, x: Any, scale: float) -> Any:
        both = self.left(self.words(ids)) * scale + torch.tanh(self.frozen(self.right(x)))
        return both + self.shift


def two_towers() -> Made:
    return TwoTowers(), (torch.randint(0, 20, (4, 5)), torch.randn(4, 5, 8), 0.5)


def resnet18() -> Made:
    built = zoo.build("torchvision:resnet18?num_classes=10", "2x3x64x64")
    return built.model, built.args


MODELS: dict[str, Callable[[], Made]] = {
    "dropout_mlp": handmade.dropout_mlp,
    "residual": residual,
    "transformer": transformer,
    "tied_weights": handmade.tied_weights,
    "unet": handmade.unet,
    "two_towers": two_towers,
    "spectral_norm": handmade.spectral_norm,
    "resnet18": resnet18,
}
QUICK = tuple(name for name in MODELS if name != "resnet18")


def make(name: str) -> Made:
    """A new model in train mode and its inputs, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, args = MODELS[name]()
    return model.train(), args


def loss(out: Any) -> Any:
    """A mean over the batch in which all values count."""
    return (out.square() + out).mean()


@dataclass(frozen=True, eq=False, kw_only=True)
class Captured:
    """A model whose step is captured. Tests share it: they leave the model as they found it."""

    model: Any
    args: tuple[Any, ...]
    step: CapturedStep

    @property
    def graph(self) -> ms.Graph:
        return self.step.graph

    def runner(self, schedule: ms.Schedule, lanes: Lanes, *, host_memory: int | None = None) -> StepRunner:
        device = ms.Device(schedule.budget, SPEED, host_memory=host_memory)
        problem = self.step.family() if self.step.rounds else self.graph
        return StepRunner(self.step, problem, schedule, device, lanes)


@functools.lru_cache(maxsize=16)
def captured(name: str, rounds: bool = False) -> Captured:
    """One of the models; each operation takes a second."""
    model, args = make(name)
    return Captured(model=model, args=args, step=CapturedStep(model, args, loss, rounds=rounds))


def fresh(step: Callable[[], Any], model: Any, *, seed: int = 0) -> Outcome:
    """What a step leaves behind that begins without gradients. The model is as before afterwards."""
    with buffers_restored(model):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        value = step()
        return outcome(model, value)


def parts(rounds: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First sample and size of each micro-batch."""
    start = 0
    for batch, times in rounds:
        for _ in range(times):
            yield start, batch
            start += batch


def plain_step(c: Captured, rounds: Sequence[tuple[int, int]] | None = None) -> Outcome:
    """By autograd, the whole batch at once or in parts, whose gradients add up."""

    def step() -> Any:
        if rounds is None:
            value = loss(c.model(*c.args))
            value.backward()
            return value
        total = None
        for start, batch in parts(rounds):
            given = [a.narrow(0, start, batch) if isinstance(a, torch.Tensor) else a for a in c.args]
            value = loss(c.model(*given)) * (batch / c.step.batch)
            value.backward()
            total = value.detach() if total is None else total + value.detach()
        return total

    return fresh(step, c.model)


def planned_step(
    c: Captured, schedule: ms.Schedule, *, early: Callable[[], bool] = lambda: True, overlap: bool = False
) -> Outcome:
    """The same under a schedule."""
    runner = c.runner(schedule, EmulatedLanes(early=early, overlap=overlap))
    return fresh(lambda: runner.step(*c.args), c.model)


def staying(c: Captured) -> ms.Schedule:
    """Nothing moves: every operation runs once, and what is not read any more is freed."""
    return ms.plan(c.graph, ms.peak_memory(c.graph), 0.0, planner="swap_opt").schedule


def schedules(
    c: Captured, planners: Sequence[str] = PLANNERS, budgets: Sequence[float] = (0.0, 0.4)
) -> Iterator[tuple[str, ms.Schedule]]:
    """Plans at budgets between what the planner needs (0) and what the plain step takes (1)."""
    for planner in planners:
        least = ms.min_memory(c.graph, planner)
        most = max(least, ms.peak_memory(c.graph))
        for part in budgets:
            memory = least + int(part * (most - least))
            try:
                result = ms.plan(c.graph, memory, SPEED, planner=planner, time_limit=0.2)
            except ms.InfeasibleError:
                continue  # its min_memory is an estimate in places
            yield f"{planner} at {part:g}", result.schedule
