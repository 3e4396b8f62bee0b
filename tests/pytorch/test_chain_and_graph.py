"""One model captured as a chain and as a graph: what selective finds on the graph beats every plan of the chain."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

import memsched as ms
from memsched.torch.machines import machine
from memsched.torch.profile import profile
from memsched.torch.recorder.record import graph_all
from memsched.torch.roofline import Roofline

MACHINE = "a100:pcie4"


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256))


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(block() for _ in range(4)), nn.Linear(256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).sum()


@cache
def captured() -> tuple[ms.Chain, ms.Graph]:
    model, args = Summed(), (torch.ones(4096, 256),)
    times = Roofline(machine(MACHINE)[0])
    recorded = graph_all(model, args, loss=lambda value: value, times=times, reorderable=True, repeatable=True)
    return profile(model, args, device=MACHINE), recorded.graph


@pytest.mark.parametrize("link", [0.0, 12e9])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.8])
def test_the_graph_is_never_slower_than_the_chain(link: float, share: float) -> None:
    chain, graph = captured()
    least, peak = ms.min_memory(graph), ms.peak_memory(graph)
    device = ms.Device(int(least + share * (peak - least)), link, duplex=True)
    (ones,) = (op for op in graph.ops if op["kind"] == "ones_like")  # the loss's own gradient, which a chain is given
    ideal = sum(chain.forward_time) + sum(chain.backward_time) + ones["choices"][0]["time"]
    assert ms.bounds(graph, device=device, time_limit=0.0).compute == pytest.approx(ideal)
    found = ms.selective(graph, device=device, moves=1000)
    assert ms.validate(found).peak_memory <= device.memory
    coarse = ms.compare(chain, device=device, planners=["rotor", "pofo"]).values()
    plans = [one.makespan for one in coarse if isinstance(one, ms.Result)]
    assert bool(plans) == (share > 0.2 or link > 0)  # without a link the stages are too large for 0.2
    assert all(found.makespan < makespan for makespan in plans)
