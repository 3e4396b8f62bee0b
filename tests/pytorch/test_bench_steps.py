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


def test_the_scan_of_the_state_space_model_is_its_recurrence() -> None:
    layer = importlib.import_module("bench.profiles.models.other").StateSpace(32, 4, head=16, chunk=8)
    values, log_decay = torch.randn(2, 24, 4, 16), -torch.rand(2, 24, 4)
    into, out_of = torch.randn(2, 24, 4), torch.randn(2, 24, 4)
    state, expected = torch.zeros(2, 4, 4, 16), []
    for token in range(24):
        added = into[:, token, None, :, None] * values[:, token, :, None]
        state = state * log_decay[:, token].exp()[..., None, None] + added
        expected.append((out_of[:, token, None, :, None] * state).sum(2))
    found = layer.scan(values, log_decay, into, out_of)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-4, atol=1e-4)


def small_networks() -> dict[str, tuple[Any, tuple[torch.Tensor, ...]]]:
    language, vision, images, other = (
        importlib.import_module(f"bench.profiles.models.{name}") for name in ("language", "vision", "images", "other")
    )
    ids, labels, image = torch.randint(0, 50, (2, 16)), torch.randint(0, 9, (2,)), torch.randn(2, 3, 64, 64)
    targets = tuple(torch.rand(2, 27, side, side) for side in (8, 4, 2))
    edges = torch.randint(0, 20, (60,))
    decoder = language.Decoder(2, 32, 4, 2, 48, 50, 16)
    mixture = language.Decoder(2, 32, 4, 2, 48, 50, 16, experts=4, batch=2)
    for layer in mixture.layers:  # each expert gets half of the tokens, each token two experts
        order = torch.randperm(32)
        layer["feedforward"].tokens.copy_(torch.cat([order, order.flip(0)]).view(4, 16))
    return {
        "gpt": (language.Gpt(2, 64, 50, 16), (ids, ids)),
        "encdec": (language.EncoderDecoder(2, 64, 50, 16), (ids, ids, ids)),
        "llama": (decoder, (ids, ids)),
        "moe": (mixture, (ids, ids)),
        "ssm": (other.StateSpaceModel(2, 64, 8, 50), (ids.repeat(1, 16), ids.repeat(1, 16))),
        "graphnet": (
            other.GraphNetwork(2, 16, 5, 7),
            (torch.randn(1, 20, 5), torch.randn(60, 8), edges, edges.flip(0), torch.randint(0, 7, (20,))),
        ),
        "unet": (images.DiffusionUnet(64, (1, 2), 1), (image, torch.rand(2), image)),
        "detector": (images.Detector(8, 1, 4), (image, *targets)),
        "resnet50": (vision.resnet50((1, 1)), (image, labels)),
        "densenet121": (vision.densenet121(), (image, labels)),
        "convnext": (vision.convnext(), (image, labels)),
        "vit": (vision.Classifier(vision.Patches(1, 64, 64), 64), (image, labels)),
    }


def test_the_networks_train_on_real_data() -> None:
    for name, (model, args) in small_networks().items():
        loss = model.train()(*args)
        assert loss.isfinite(), name
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()), name


def test_attention_without_a_known_kernel_is_refused() -> None:
    query, key = torch.ones(1, 4, 2, 8), torch.ones(1, 2, 2, 8)
    with kernels(), pytest.raises(NotImplementedError, match="grouped in float32"):
        functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
