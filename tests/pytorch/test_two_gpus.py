"""moDNN's plan for two GPUs, executed by two processes with gloo: half the batch each, in rounds, on half the link."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn

import memsched as ms
from memsched.torch import plan

BATCH, LINK, BUDGET = 16, 2e8, 360_000


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(16, 16, 3, padding=1), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def data() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(BATCH, 3, 16, 16)


def step_of(batch: int) -> ms.Graph:
    graph = plan(Network(), (data()[:batch],), budget="100%", device="v100").graph
    return ms.Graph.from_json({**graph.to_json(), "batch": batch})


def two_gpus() -> ms.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the link is as slow as the network is small
        return ms.modnn(ms.GraphFamily(step_of, BATCH), BUDGET, LINK, gpus=2)


def train(rank: int, rounds: list[tuple[int, int]], folder: str) -> None:
    """One step, plain and planned, in the rounds of the plan."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["MEMSCHED_CACHE"] = ""
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    from memsched.torch import plans
    from memsched.torch.compiled.unit import counted

    mine = data()[rank * BATCH // 2 : (rank + 1) * BATCH // 2]
    parts = mine.split([size for size, count in rounds for _ in range(count)])
    options: dict[str, Any] = {"budget": BUDGET, "planner": "modnn", "bandwidth": LINK / 2, "device": "v100"}
    found = []
    for given in (None, options):
        model = nn.parallel.DistributedDataParallel(Network())
        call = model if given is None else torch.compile(model, backend="memsched", options=given)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with counted(torch.device("cpu")) as meter, contextlib.nullcontext() if last else model.no_sync():
                (call(part).square().mean() * (len(part) / len(mine))).backward()
        found.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    made = plans()[-1]
    del model, call
    assert len(found[0]) == len(list(Network().parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert made.result.schedule.planner["name"] == "modnn"
    assert made.process_bytes(meter.peak) <= BUDGET
    assert made.result.schedule.offloaded
    torch.save(found[1], f"{folder}/gradients {rank}")
    torch._dynamo.reset()
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_a_plan_for_two_gpus_is_executed_by_two_processes(tmp_path: Path) -> None:
    planned = two_gpus()
    ms.validate(planned)
    rounds = [(size, count) for size, count in planned.schedule.rounds]
    assert sum(size * count for size, count in rounds) == BATCH // 2
    assert planned.device.d2h == LINK / 2
    processes.spawn(train, (rounds, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    # Both have the same gradients: those of the whole batch.
    both = [torch.load(tmp_path / f"gradients {rank}") for rank in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
    whole = Network()
    whole(data()).square().mean().backward()
    for one, gradient in zip(whole.parameters(), both[0], strict=True):
        torch.testing.assert_close(one.grad, gradient)
