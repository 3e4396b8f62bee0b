"""Training steps that the recorder is tried on, and what runs and records them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memsched as ms
from memsched.torch import weightless
from memsched.torch.recorder.assemble import Tape
from memsched.torch.recorder.tape import Recorder

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-3)
NEEDS_TORCHVISION = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed; its models are tried here"
)


class Residual(nn.Module):
    """Operations without scratch memory; gradients meet at every block."""

    def __init__(self, blocks: int = 3, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x).relu()
        return x


class Block(nn.Module):
    """One block of a decoder such as GPT-2, with dropout, an in-place activation and tied embeddings."""

    def __init__(self, width: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.act = nn.Dropout(0.1), nn.ReLU(inplace=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = self.drop(self.embed(ids))
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        x = x + self.drop(self.out(attended[:, 0]))
        x = x + self.drop(self.down(self.act(self.up(self.norm2(x)))))
        return self.head(x)


class Loop(nn.Module):
    """A recurrence in plain Python that writes its states into one tensor, and an LSTM on top."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cell, self.lstm = nn.Linear(2 * width, width), nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Any) -> Any:
        state = torch.zeros_like(x[:, 0])
        states = torch.empty_like(x)
        for now in range(x.shape[1]):
            state = torch.tanh(self.cell(torch.cat([x[:, now], state], dim=1)))
            states[:, now] = state
        return self.lstm(states)[0]


def torchvision_model(name: str) -> Any:
    from memsched.torch.zoo import torchvision

    return torchvision().models.get_model(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step of the tests; `doubled`: whether the graph has to hold some tensor twice."""

    name: str
    build: Callable[[], Any]
    args: Callable[[], Any] = lambda: torch.randn(2, 3, 64, 64)
    optimizer: Any = SGD
    fake: bool = False
    micro: int = 1
    doubled: bool = False
    marks: tuple[Any, ...] = ()


def ids() -> Any:
    return torch.randint(0, 50, (4, 16))


CASES = [
    Case(name="residual", build=Residual, args=lambda: torch.randn(64, 32)),
    Case(
        name="residual-foreach",
        build=Residual,
        args=lambda: torch.randn(8, 32),
        optimizer=functools.partial(ADAMW, foreach=True),
    ),
    Case(name="residual-micro", build=Residual, args=lambda: torch.randn(64, 32), micro=2),
    Case(name="block", build=Block, args=ids, optimizer=functools.partial(ADAMW, fused=True)),
    Case(name="block-foreach", build=Block, args=ids, optimizer=functools.partial(ADAMW, foreach=True)),
    Case(name="block-micro", build=Block, args=ids, micro=2, optimizer=functools.partial(ADAMW, foreach=True)),
    Case(name="loop", build=Loop, args=lambda: torch.randn(4, 5, 16), doubled=True),
]
VISION = [
    Case(name="resnet18", build=functools.partial(torchvision_model, "resnet18")),
    Case(name="resnet18-fake-micro", build=functools.partial(torchvision_model, "resnet18"), fake=True, micro=2),
    Case(
        name="densenet121-fake",
        marks=(pytest.mark.slow,),
        build=functools.partial(torchvision_model, "densenet121"),
        fake=True,
        optimizer=functools.partial(ADAMW, fused=True),
    ),
    Case(
        name="vit_b_16-fake",
        build=functools.partial(torchvision_model, "vit_b_16"),
        fake=True,
        args=lambda: torch.randn(1, 3, 224, 224),
        optimizer=functools.partial(ADAMW, foreach=True),
    ),
]
ALL = [
    *(pytest.param(case, id=case.name) for case in CASES),
    *(pytest.param(case, id=case.name, marks=[NEEDS_TORCHVISION, *case.marks]) for case in VISION),
]


@contextlib.contextmanager
def prepared(case: Case) -> Iterator[tuple[Callable[[], object], list[Any]]]:
    """A step whose optimiser has its state, no gradients, and what stays for good: all that exists before."""
    torch.manual_seed(0)
    fake = FakeTensorMode() if case.fake else None
    model = weightless.construct(case.build) if fake else case.build()
    if fake:
        weightless.make_fake(model, fake, torch.device("cpu"))
    with fake or contextlib.nullcontext():
        args = [case.args() for _ in range(case.micro)]
        optimizer = case.optimizer(model.parameters())

        def step() -> object:
            for x in args:
                loss = model(x).sum()
                loss.backward()
            optimizer.step()
            return loss

        step()
        optimizer.zero_grad()
        state = [value for values in optimizer.state.values() for value in values.values()]
        tensors = [value for value in state if isinstance(value, torch.Tensor)]
        yield step, [*model.parameters(), *model.buffers(), *args, *tensors]
        optimizer.zero_grad()


def taped(step: Callable[[], object], resident: list[Any]) -> Tape:
    """What is recorded under a dispatch mode, as a meter that is one sees it too."""
    recorder = Recorder(resident, None, {})
    with recorder:
        kept = step()
    tape = recorder.close()
    del kept
    return tape


def plain_run(problem: ms.Graph) -> ms.Timeline:
    """All ops in order, each tensor freed after its last use."""
    last: dict[str, int] = {}
    for position, op in enumerate(problem.ops):
        last.update(dict.fromkeys(op["reads"], position))
    steps: list[dict[str, Any]] = []
    for position, op in enumerate(problem.ops):
        steps.append({"run": op["name"]})
        steps += [{"free": tensor} for tensor in op["reads"] if last[tensor] == position]
    budget = ms.peak_memory(problem)
    schedule = ms.Schedule(steps, budget=budget, graph=problem.name, rounds=[(problem.batch, 1)])
    device = ms.Device(budget, 1e9)
    timeline = ms.simulate(problem, schedule, device)
    assert ms.validate(problem, schedule, device).peak_memory == timeline.peak_memory
    return timeline
