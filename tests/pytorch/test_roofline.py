"""The roofline model of kernels, against hand counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from memsched.torch.machines import LAUNCH_SECONDS, MACHINES, Machine
from memsched.torch.roofline import BANDWIDTH_SHARE, FLOPS_SHARE, Roofline, describe

# On this machine a byte costs one second; arithmetic and launches are free.
BYTES = replace(
    MACHINES["a100"],
    memory_bandwidth=1 / BANDWIDTH_SHARE,
    float32=float("inf"),
    tf32=None,
    float16=None,
    bfloat16=None,
    launch=0.0,
)
# On this machine an operation of arithmetic costs one second, 10 in TF32, 100 in float16; all else is free.
FLOPS = replace(
    MACHINES["a100"],
    memory_bandwidth=float("inf"),
    float32=1 / FLOPS_SHARE,
    tf32=0.1 / FLOPS_SHARE,
    float16=0.01 / FLOPS_SHARE,
    bfloat16=None,
    launch=0.0,
)


def cost(
    machine: Machine, run: Callable[..., object], *shapes: tuple[int, ...], dtype: torch.dtype | None = None
) -> float:
    """Seconds of run on fake tensors of these shapes."""
    with FakeTensorMode():
        tensors = [torch.empty(shape, dtype=dtype) for shape in shapes]
        with Roofline(machine) as model:
            run(*tensors)
    return model.seconds


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.detach(),
        lambda x: x.view(-1),
        lambda x: x[1:, :2].unsqueeze(0).expand(7, 3, 2),
        lambda x: x.t_(),
        lambda x: x.chunk(2),
        lambda x: (x.shape, x.device, x.dtype, x.is_contiguous()),
        lambda x: torch.empty_like(x),
        lambda x: x.new_empty(5),
        lambda x: torch.ops.aten._unsafe_view(x, [16]),  # its schema does not say that it is a view
    ],
)
def test_views_and_questions_cost_nothing(view: Callable[..., object]) -> None:
    assert cost(MACHINES["v100"], view, (4, 4)) == 0


@pytest.mark.parametrize(
    ("run", "numbers"),
    [
        (lambda x, y: x + y, 3 * 16),
        (lambda x, y: x + x, 2 * 16),  # one argument twice is read once
        (lambda x, y: x.add_(y), 3 * 16),  # in place: both read, one written
        (lambda x, y: x.mul_(2.0), 2 * 16),
        (lambda x, y: x.zero_(), 2 * 16),
        (lambda x, y: torch.add(x, 1.0, out=y), 3 * 16),
        (lambda x, y: x[:2] * 2.0, 2 * 8),  # only the part that is seen
        (lambda x, y: x[0].expand(100, 4).sum(), 4 + 1 + 12),  # no more than the storage has; views share theirs
        (lambda x, y: x[:2] + x[2:], 16 + 8),
        (lambda x, y: torch.cat([x, y]), 2 * 32),
        (lambda x, y: torch._foreach_add_([x, y], 1.0), 2 * 32),
        (lambda x, y: x.reshape(2, 8).t().contiguous(), 2 * 16),
        (lambda x, y: torch.zeros(3), 3),
        (lambda x, y: torch.ops.aten.max_pool2d_with_indices(x[None, None], [2, 2]), 16 + 4 + 2 * 4),  # 8-byte indices
    ],
)
def test_bytes_read_and_written(run: Callable[..., object], numbers: int) -> None:
    assert cost(BYTES, run, (4, 4), (4, 4)) == pytest.approx(4 * numbers)


def test_flops_of_matrix_products_and_their_backward() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        (x @ w.requires_grad_()).sum().backward()

    assert cost(FLOPS, torch.mm, (2, 3), (3, 5)) == pytest.approx(60)
    assert cost(FLOPS, torch.bmm, (7, 2, 3), (7, 3, 5)) == pytest.approx(420)
    assert cost(FLOPS, torch.addmm, (2, 5), (2, 3), (3, 5)) == pytest.approx(60)
    assert cost(FLOPS, step, (2, 3), (3, 5)) == pytest.approx(120)  # x needs no gradient


@given(groups=st.integers(1, 4), factor=st.integers(1, 3), transposed=st.booleans(), needs=st.booleans())
def test_each_gradient_of_a_convolution_costs_its_forward(
    groups: int, factor: int, transposed: bool, needs: bool
) -> None:
    inner, outer, images, kernel = 2 * groups, factor * groups, 3, 3
    forward = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    weight = (inner, outer // groups) if transposed else (outer, inner // groups)
    laps = []

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        out = forward(x.requires_grad_(needs), w.requires_grad_(), groups=groups)
        with Roofline(FLOPS) as model:
            out.backward(torch.empty_like(out))
        laps.append(model.seconds)

    seconds = cost(FLOPS, step, (images, inner, 8, 8), (*weight, kernel, kernel))
    places = 8 * 8 if transposed else 6 * 6
    flops = 2 * images * places * inner * outer // groups * kernel * kernel
    assert seconds == pytest.approx(10 * flops * (2 + needs))  # convolutions run in TF32
    assert laps == [pytest.approx(10 * flops * (1 + needs))]


def test_the_type_of_the_arguments_decides_the_peak() -> None:
    product = {dtype: cost(FLOPS, torch.mm, (2, 3), (3, 5), dtype=dtype) for dtype in (torch.float16, torch.bfloat16)}
    assert product[torch.float16] == pytest.approx(100 * 60)
    assert product[torch.bfloat16] == pytest.approx(60)  # no tensor cores for it here: the float32 rate
    assert cost(FLOPS, torch.mm, (2, 3), (3, 5)) == pytest.approx(60)  # TF32 is off for products


@pytest.mark.parametrize("fused", [True, False])
def test_fused_attention_is_one_kernel(fused: bool) -> None:
    aten = torch.ops.aten
    with FakeTensorMode(), Roofline(FLOPS) as model:
        q, k, v = (torch.empty(2, 4, 8, 16, requires_grad=True) for _ in range(3))
        if fused:
            out = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[0]
        else:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # the CPU's own
        assert model.kernels == 1
        one = 2 * 2 * 4 * 8 * 8 * 16  # one of its matrix products
        assert model.lap() == pytest.approx(2 * one)
        out.backward(torch.empty_like(out))
        assert model.lap() == pytest.approx(5 * one)


def test_laps() -> None:
    with FakeTensorMode(), Roofline(MACHINES["k40m"]) as model:
        x = torch.zeros(10)
        first = model.lap()
        y = x + 1
        y = y * 2
        second = model.lap()
        assert model.lap() == 0
    assert first >= LAUNCH_SECONDS
    assert second >= 2 * LAUNCH_SECONDS
    assert model.seconds == pytest.approx(first + second)
    assert (model.kernels, model.machine.name) == (3, "k40m")


def test_the_larger_of_arithmetic_and_memory_counts() -> None:
    gpu = MACHINES["v100"]
    small, large = (cost(gpu, torch.mm, (n, n), (n, n)) for n in (8, 4096))
    assert small == pytest.approx(gpu.launch + 3 * 8 * 8 * 4 / (0.75 * 900e9))
    assert large == pytest.approx(gpu.launch + 2 * 4096**3 / (0.6 * 14e12))


def test_the_description_says_that_it_is_a_model() -> None:
    assert describe(MACHINES["h100"]).startswith("roofline model of h100, not a measurement: per ATen kernel max(")
    assert describe(MACHINES["h100"]).endswith("bytes / (0.75 x 3350 GB/s)) + 4 us launch")
