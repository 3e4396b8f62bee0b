"""Train a small ResNet without a plan and with one at a tight budget: the same losses bit for bit, in less memory.

python examples/train_plan.py --plot train_plan.png
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import memsched.torch
from memsched.support.formats import format_bytes
from memsched.torch.meter import Meter

BATCH, SIDE, CLASSES = 20, 24, 6


class Block(nn.Module):
    """Batch statistics, dropout and writing in place: where careless recomputation gives other results."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, padding=1)]
        second = [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Dropout2d(0.1)]
        self.body = nn.Sequential(*first, *second, nn.Conv2d(channels, channels, 3, padding=1))

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimiser, the same at each call. A fused optimiser makes no temporary copies."""
    torch.manual_seed(0)
    shallow = [nn.Conv2d(1, 16, 3, padding=1), *(Block(16) for _ in range(4))]
    deep = [nn.Conv2d(16, 32, 3, stride=2, padding=1), *(Block(32) for _ in range(4))]
    model = nn.Sequential(*shallow, *deep, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)).train()
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)


def make_batch(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Stripes under noise; the class is their direction."""
    label = torch.randint(CLASSES, (BATCH,), generator=generator)
    angle = (label * torch.pi / CLASSES).view(-1, 1, 1)
    phase = 2 * torch.pi * torch.rand(BATCH, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = torch.sin(0.9 * (x * torch.cos(angle) + y * torch.sin(angle)) + phase)
    return (stripes + 3 * torch.randn(stripes.shape, generator=generator)).unsqueeze(1), label


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """An ordinary training step. Nothing in it knows whether the model has a plan."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, Any]:
    """Losses, seconds of a step, and the bytes that are there before a step."""
    torch.manual_seed(1)  # both runs draw the same masks for dropout
    data = torch.Generator().manual_seed(2)
    began = time.perf_counter()
    losses = [step(model, optimizer, *make_batch(data)) for _ in range(steps)]
    seconds = (time.perf_counter() - began) / steps
    states = (value for state in optimizer.state.values() for value in state.values())
    there = sum(t.nbytes for t in itertools.chain(model.parameters(), model.buffers(), states, make_batch(data)))
    return {"losses": losses, "seconds": seconds, "there": there}


def count(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The peak of one more plain step, in bytes: the meter counts what is born under it, gradients and activations."""
    batch = make_batch(torch.Generator().manual_seed(3))
    optimizer.zero_grad()
    with Meter() as meter:
        step(model, optimizer, *batch)
    return meter.peak


def main() -> int:
    """0 if the plan kept its promises: the same losses, within the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--budget", default="20%", help="such as 20MiB; percents: of the way from little to plain")
    # What a CPU offloads stays in the same memory: recompute only. On a GPU leave bandwidth out.
    parser.add_argument("--bandwidth", default="0", help="of the link to the host, such as 12GB/s")
    parser.add_argument("--plot", metavar="PNG")
    given = parser.parse_args()

    model, optimizer = make()
    plain = train(model, optimizer, given.steps)
    plain["peak"] = plain["there"] + count(model, optimizer)

    model, optimizer = make()
    images, _ = make_batch(torch.Generator().manual_seed(2))
    plan = memsched.torch.plan(
        model,
        (images,),
        budget=given.budget,
        optimizer=optimizer,
        loss=lambda out: F.cross_entropy(out, torch.zeros(BATCH, dtype=torch.long)),
        bandwidth=given.bandwidth,
    )
    verified = plan.verify(model, (images,))  # optional: proves the plan on this batch before hours are spent
    planned = train(plan.apply(model), optimizer, given.steps) | {"peak": verified.peak_memory}

    budget = plan.result.schedule.budget
    print(plan.report())
    print(f"\n{given.steps} steps       last loss    s a step    peak")
    for name, run in (("without plan", plain), ("with plan", planned)):
        print(f"{name:<15}{run['losses'][-1]:>9.6f}{run['seconds']:>12.4f}    {format_bytes(run['peak'])}")
    if given.plot:
        from training_plot import draw

        draw(given.plot, plain, planned, budget, plan.result.timeline)
    same, within = plain["losses"] == planned["losses"], planned["peak"] <= budget
    print(f"the losses are {'the same, bit for bit' if same else 'NOT the same'}")
    print(f"the peak is {'within' if within else 'ABOVE'} the budget of {format_bytes(budget)}")
    return 0 if same and within else 1


if __name__ == "__main__":
    raise SystemExit(main())
