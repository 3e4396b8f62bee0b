"""Compiled steps under DDP and FSDP2, on two processes with gloo."""

from __future__ import annotations

import copy
import gc
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pytorch.test_compiled import CASES, Broken, Transformer, compiled_by_block

WAYS = ["ddp", pytest.param("fsdp whole", marks=pytest.mark.exhaustive), "fsdp by block"]


def wrapped(way: str, model: nn.Module) -> nn.Module:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, one in model.named_parameters():
        assert one.grad is not None, name
        found[name.removeprefix("module.")] = getattr(one.grad, "full_tensor", lambda grad=one.grad: grad)().clone()
    return found


def train(rank: int, way: str, folder: str) -> None:
    """Two steps, with a plan and without."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["MEMSCHED_CACHE"] = ""
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    from memsched.torch.compiled.groups import plans
    from memsched.torch.compiled.unit import counted

    torch.manual_seed(0)
    model = Broken(64, 2) if way == "fsdp by block" else Transformer(64, 2)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # FSDP's own order of draws is not what is tried here
    args = CASES["transformer"][1]()
    plain = wrapped(way, copy.deepcopy(model))
    planned = wrapped(way, model)
    options: dict[str, Any] = {"budget": "70%"}
    if way == "fsdp by block":
        compiled = compiled_by_block(planned, options)
    else:
        compiled = torch.compile(planned, backend="memsched", options=options)
    for step in range(2):
        results = []
        for one, call in ((plain, plain), (planned, compiled)):
            torch.manual_seed(step)
            one.zero_grad()
            with counted(torch.device("cpu")) as meter:
                loss = call(*args)
                loss.backward()
            results.append((loss.detach(), gradients(one)))
        (loss, expected), (found_loss, found) = results
        assert torch.equal(loss, found_loss), step
        assert expected.keys() == found.keys()
        assert [name for name in expected if not torch.equal(expected[name], found[name])] == [], step
        plan = plans()[-1]
        if step > 0:
            assert plan.process_bytes(meter.peak) <= plan.result.schedule.budget
    assert plan.result.recomputed
    steps = repr(plan.result.schedule.steps)
    both: list[Any] = [None, None]
    torch.distributed.all_gather_object(both, steps)
    assert both[0] == both[1], "all ranks follow the same plan"
    # The process group must outlive what uses it, or its threads end with the interpreter.
    del model, plain, planned, compiled, one, call, plan, results, loss, found_loss, expected, found, meter
    torch._dynamo.reset()
    gc.collect()
    torch.distributed.barrier()
    Path(folder, f"passed {rank}").touch()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("way", WAYS)
def test_sharded_steps_have_the_bits_of_plain_ones(way: str, tmp_path: Path) -> None:
    processes.spawn(train, (way, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    assert sorted(path.name for path in tmp_path.glob("passed *")) == ["passed 0", "passed 1"]
