"""The command that makes the shipped training steps: it makes what is shipped, with CUDA's types and kernels."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import memsched as ms

ROOT = Path(__file__).parents[2]
SMALL = "graphnet-40k-b1-f32"
STEPS = [name for name in ms.profiles.graph_names() if name not in ms.profiles.names()]

pytestmark = pytest.mark.skipif(not (ROOT / "bench" / "profiles").is_dir(), reason="the benchmarks are not here")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def kernels() -> Any:
    return importlib.import_module("bench.profiles.kernels").CudaKernels()


def test_the_names_are_the_shipped_ones() -> None:
    assert list(importlib.import_module("bench.profiles.steps").names()) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == SMALL else pytest.mark.exhaustive) for name in STEPS]
)
def test_the_graphs_are_the_shipped_ones(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = importlib.import_module("bench.profiles.__main__").main
    assert command(["--parts", "steps", "--only", name, "--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("autocast", [False, True])
def test_norms_and_losses_are_float32_under_autocast(autocast: bool) -> None:
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    weight = torch.ones(4) if autocast else torch.ones(4, dtype=torch.bfloat16)
    with kernels(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = functional.layer_norm(x, (4,), weight), functional.mse_loss(x, x), functional.relu(x)
    wide = torch.float32 if autocast else torch.bfloat16
    assert [value.dtype for value in found] == [wide, wide, torch.bfloat16]


@pytest.mark.parametrize(
    ("dtype", "groups", "kernel"),
    [(torch.float32, 4, "efficient"), (torch.bfloat16, 4, "flash"), (torch.bfloat16, 2, "flash")],
)
def test_attention_is_the_kernel_of_cuda(dtype: torch.dtype, groups: int, kernel: str) -> None:
    from memsched.torch.recorder.record import record

    with torch._subclasses.FakeTensorMode():
        query = torch.empty(2, 4, 16, 8, dtype=dtype)
        key = torch.empty(2, groups, 16, 8, dtype=dtype)

        def step() -> Any:
            with kernels():
                return functional.scaled_dot_product_attention(query, key, key, enable_gqa=groups < 4)

        assert f"_scaled_dot_product_{kernel}_attention" in [op["kind"] for op in record(step).ops]


def test_attention_without_a_known_kernel_is_refused() -> None:
    query, key = torch.ones(1, 4, 2, 8), torch.ones(1, 2, 2, 8)
    with kernels(), pytest.raises(NotImplementedError, match="grouped in float32"):
        functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
