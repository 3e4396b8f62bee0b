"""The first step under each plan is counted: an operation that takes more than PyTorch traced is told, and planned."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import memsched.torch as mt
from memsched import InfeasibleError
from memsched.torch.compiled.unit import counted
from memsched.torch.compiled.unplanned import UnplannedWarning
from memsched.torch.meter import Meter

ROWS = 512


@torch.library.custom_op("memsched_tests::roomy", mutates_args=())
def roomy(x: torch.Tensor) -> torch.Tensor:
    """A copy in memory that is four times as large as the one that `_` tells of."""
    return torch.cat([x, x, x, x])[: len(x)]


@roomy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


roomy.register_autograd(lambda ctx, gradient: gradient * 1.0, setup_context=lambda ctx, inputs, output: None)


class Net(torch.nn.Module):
    """Layers, with or without such operations between them."""

    def __init__(self, between: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(8))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the last layer."""
        for layer in self.layers:
            x = layer(x)
            x = torch.sin(roomy(x) if self.between else x)
        return x.sum()


def steps(net: Net, budget: str) -> Iterator[tuple[int, list[str]]]:
    """Of each step what it took, in bytes, beside what was there before; and what was said."""
    inputs = torch.randn(ROWS, 64)
    compiled = torch.compile(net, backend="memsched", options={"budget": budget})
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught, counted(torch.device("cpu")) as meter:
            warnings.simplefilter("always")
            compiled(inputs).backward()
        net.zero_grad()
        yield meter.peak, [str(one.message) for one in caught if one.category is UnplannedWarning]


def test_what_takes_more_than_traced_is_told_and_planned() -> None:
    torch.manual_seed(0)
    budget = 4 * ROWS * 64 * 32  # twice what PyTorch traces, and less than what is there
    net = Net(between=True)
    resident = sum(4 * one.numel() for one in net.parameters()) + 4 * ROWS * 64
    (first, _), (_, told), (third, said), (fourth, later) = steps(net, str(budget))
    assert first + resident > budget  # or nothing is tried
    assert len(told) == 1
    assert "exceeded the budget" in told[0]
    assert said == later == []
    assert max(third, fourth) + resident <= budget


def test_where_no_plan_holds_it_the_next_step_is_refused() -> None:
    torch.manual_seed(0)
    net = Net(between=True)
    found = steps(net, str(4 * ROWS * 64 * 8))
    next(found)
    with pytest.raises(InfeasibleError, match="too small"):
        next(found)


def test_a_sound_plan_is_counted_once_and_nothing_is_said() -> None:
    torch.manual_seed(0)
    net = Net(between=False)
    begun = []
    plain = Meter.__enter__

    def enter(meter: Meter) -> Meter:
        begun.append(meter)
        return plain(meter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Meter, "__enter__", enter)
        said = [more for _, more in steps(net, "60%")]
    assert said == [[], [], [], []]
    assert len(begun) == 2 * 4 + 2  # those of `counted`, and the forward and the backward of the first step


def test_another_model_needs_no_room_for_what_one_took() -> None:
    """It was kept for all models with the same options, and outlived torch._dynamo.reset()."""
    torch.manual_seed(0)
    budget = str(4 * ROWS * 64 * 32)
    *_, last = steps(Net(between=True), budget)
    assert last[1] == []
    torch._dynamo.reset()
    net = Net(between=False)
    said = [more for _, more in steps(net, budget)]
    assert said == [[], [], [], []]
    assert mt.plans()[-1].resident.reserve == 0


def test_an_error_says_what_a_step_before_took() -> None:
    torch.manual_seed(0)
    found = steps(Net(between=True), str(4 * ROWS * 64 * 8))
    next(found)
    with pytest.raises(InfeasibleError, match=r"; [\d.]+ MiB of that are what an earlier step took beyond its plan"):
        next(found)


def test_what_a_graph_took_counts_in_every_step_that_it_is_in() -> None:
    """It was kept for steps that begin with the graph, and until PyTorch compiled it for other sizes."""
    torch.manual_seed(0)
    budget = 4 * ROWS * 64 * 36
    roomy_, plain = Net(between=True), Net(between=False)
    nets = [torch.compile(one, backend="memsched", options={"budget": str(budget)}) for one in (roomy_, plain)]
    inputs = torch.randn(ROWS, 64)
    resident = sum(4 * one.numel() for net in (roomy_, plain) for one in net.parameters()) + 4 * ROWS * 64
    peaks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnplannedWarning)
        for chosen in [[0]] * 3 + [[1]] * 2 + [[1, 0]] * 3:
            with counted(torch.device("cpu")) as meter:
                sum(nets[k](inputs) for k in chosen).backward()
            peaks.append(meter.peak)
            for net in nets:
                net.zero_grad()
    assert peaks[0] + resident > budget  # or nothing is tried
    assert max(peaks[5:]) + resident <= budget
