"""The bytes that Meter counts under its dispatch mode against those that the allocator gives out without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from memsched.torch.meter import Meter
from pytorch.allocator import allocator_peak

WIDE = (64, 1024)


def both_peaks(function: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, int]:
    """Of the backward of a function: as counted, and as allocated."""

    def backward() -> Callable[[], object]:
        x = torch.rand(WIDE, requires_grad=True)
        entered = x * 1
        out = function(entered)
        gradient = torch.rand_like(out)
        return lambda: torch.autograd.grad(out, entered, gradient)

    real = allocator_peak(backward())
    step = backward()
    with Meter() as meter:
        kept = step()
        counted = meter.peak
    del kept
    return counted, real


def residual(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() + x.sigmoid()


def four_users(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + x.sigmoid() + x.tanh() + x.softmax(-1)


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x.tanh().sum() + x.sum() + x.sigmoid().mean()


def columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, :512].tanh().sum() + x.t().sigmoid().sum()


def reshaped(x: torch.Tensor) -> torch.Tensor:
    return x.tanh() + x.view(-1).sigmoid().view(WIDE)


def both_reshaped(x: torch.Tensor) -> torch.Tensor:
    return x.t().tanh() + x.t().sigmoid()


def twice_the_same(x: torch.Tensor) -> torch.Tensor:
    return x + x


def with_its_transpose(x: torch.Tensor) -> torch.Tensor:
    y = x[:, :64]
    return (y + y.t()).tanh()


def deep(x: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = x + (x.tanh() + x.relu()).sigmoid()
    return x


def held_by_the_caller(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.retain_grad()
    return y.cos() + y * 3


def squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


@pytest.mark.parametrize(
    "function",
    [
        residual,
        four_users,
        expanded,
        columns,
        reshaped,
        both_reshaped,
        twice_the_same,
        with_its_transpose,
        deep,
        held_by_the_caller,
    ],
)
def test_gradients_are_summed_as_without_a_watcher(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    counted, real = both_peaks(function)
    assert abs(counted - real) <= 256, (counted, real)


def test_a_sum_of_two_gradients_of_one_operation_counts_whole() -> None:
    counted, real = both_peaks(squared)
    assert real < counted <= real + 4 * WIDE[0] * WIDE[1]


def test_gradients_of_gradients_are_not_summed_in_place() -> None:
    def step() -> object:
        h = torch.ones(WIDE, requires_grad=True) * 1
        (gradient,) = torch.autograd.grad((h.tanh() + h.sigmoid()).sum(), h, create_graph=True)
        return (gradient * gradient).sum()

    real = allocator_peak(step)
    with Meter() as meter:
        kept = step()
        counted = meter.peak
    del kept
    assert abs(counted - real) <= 256, (counted, real)


def test_an_addition_in_the_forward_counts_whole() -> None:
    with Meter() as meter:
        total = torch.ones(1024) + torch.ones(1024)
        assert meter.peak == 3 * 4096
        assert meter.live == 4096
    del total
