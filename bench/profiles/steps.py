"""Training steps of today's networks as graphs, in float32 and bfloat16, with an optimiser's op for each parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from bench.profiles.chains import VERSION
from bench.profiles.graphs import numbers, structure
from bench.profiles.kernels import CudaKernels
from bench.profiles.models import images, language, other, vision
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memsched as ms
from memsched.torch.machines import machine
from memsched.torch.profile import profile
from memsched.torch.recorder.record import graph_all
from memsched.torch.roofline import Roofline, describe

MACHINE = "a100:pcie4"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step in two precisions.

    Attributes
    ----------
    title : str
        What is trained, on what, for the provenance.
    make : callable
        The network with its loss.
    inputs : tuple
        Shape and dtype of each; those of None are in the precision of the inputs.
    sgd : bool
        SGD with momentum in place of AdamW.
    weights : bool
        bfloat16 means weights, gradients and optimiser state in bfloat16. Otherwise it means autocast.
    """

    title: str
    make: Callable[[], nn.Module]
    inputs: tuple[tuple[tuple[int, ...], torch.dtype | None], ...]
    sgd: bool = False
    weights: bool = False


def _tokens(batch: int, length: int, count: int = 2) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return (((batch, length), torch.int64),) * count


def _images(batch: int, side: int) -> tuple[tuple[tuple[int, ...], torch.dtype | None], ...]:
    return ((batch, 3, side, side), None), ((batch,), torch.int64)


def _mixture() -> nn.Module:
    return language.Decoder(5, 1024, 16, 4, 3584, 32000, 1024, experts=8, batch=8)


STEPS = {
    "gpt-1024-b8": Step(
        title="GPT-2 small (12 layers, width 768, dropout 0.1), 8 x 1024 tokens",
        make=language.Gpt,
        inputs=_tokens(8, 1024),
    ),
    "llama-2048-b2": Step(
        title="Llama 3.2 1B (16 layers, width 2048, 32 heads in 8 groups), 2 x 2048 tokens",
        make=language.Decoder,
        inputs=_tokens(2, 2048),
        weights=True,
    ),
    "vit-224-b64": Step(title="ViT-B/16, 64 images of 224 x 224", make=vision.vit, inputs=_images(64, 224)),
    "unet-64-b32": Step(
        title="diffusion U-Net (width 128, factors 1, 2, 4, attention at 16 x 16), 32 images of 64 x 64",
        make=images.DiffusionUnet,
        inputs=(((32, 3, 64, 64), None), ((32,), torch.float32), ((32, 3, 64, 64), torch.float32)),
    ),
    "encdec-256-b32": Step(
        title="encoder-decoder (6 + 6 layers, width 512, dropout 0.1), 32 x 256 tokens on either side",
        make=language.EncoderDecoder,
        inputs=_tokens(32, 256, 3),
    ),
    "moe-1024-b8": Step(
        title="mixture of experts (5 layers, width 1024, 2 of 8 experts a token, routing fixed), 8 x 1024 tokens",
        make=_mixture,
        inputs=_tokens(8, 1024),
        weights=True,
    ),
    "convnext-224-b64": Step(title="ConvNeXt-T, 64 images of 224 x 224", make=vision.convnext, inputs=_images(64, 224)),
    "ssm-2048-b4": Step(
        title="state-space model (8 Mamba-2 layers, width 1024, chunks of 128), 4 x 2048 tokens",
        make=other.StateSpaceModel,
        inputs=_tokens(4, 2048),
        weights=True,
    ),
    "detector-640-b16": Step(
        title="detector (cross-stage backbone, path aggregation neck, three heads), 16 images of 640 x 640",
        make=images.Detector,
        inputs=(((16, 3, 640, 640), None), *(((16, 255, side, side), torch.float32) for side in (80, 40, 20))),
        sgd=True,
    ),
    "resnet50-224-b128": Step(
        title="ResNet-50, 128 images of 224 x 224", make=vision.resnet50, inputs=_images(128, 224), sgd=True
    ),
    "densenet121-224-b64": Step(
        title="DenseNet-121, 64 images of 224 x 224", make=vision.densenet121, inputs=_images(64, 224), sgd=True
    ),
    "graphnet-40k-b1": Step(
        title="graph network (10 gated graph convolutions, width 128), one graph of 40,000 nodes and 320,000 edges",
        make=other.GraphNetwork,
        inputs=(
            ((1, 40_000, 100), None),
            ((320_000, 8), None),
            *(((size,), torch.int64) for size in (320_000, 320_000, 40_000)),
        ),
    ),
}
PRECISIONS = ("f32", "bf16")


def names() -> tuple[str, ...]:
    """Of all steps in all precisions, sorted."""
    return tuple(sorted(f"{name}-{precision}" for name in STEPS for precision in PRECISIONS))


def record(name: str, *, whole: bool = False) -> ms.Graph:
    """The graph of one step; nothing is computed or allocated.

    `whole`: with AdamW in any case, and parameters and its state as persistent tensors.
    """
    base, _, precision = name.rpartition("-")
    step, half = STEPS[base], precision == "bf16"
    gpu, _ = machine(MACHINE)
    dtype = torch.bfloat16 if half and step.weights else torch.float32
    with torch.device("meta"):
        model = step.make().train()
        args = tuple(torch.empty(shape, dtype=dtype if kind is None else kind) for shape, kind in step.inputs)
    if dtype is torch.bfloat16:
        model = model.to(dtype)
    with CudaKernels():
        return graph_all(
            model,
            args,
            loss=lambda value: value,
            optimizer=_sgd if step.sgd and not whole else _adamw,
            autocast=torch.bfloat16 if half and not step.weights else None,
            times=Roofline(gpu),
            name=name,
            reorderable=True,
            repeatable=True,
            persistent=whole,
        ).graph


def record_chain(name: str) -> ms.Chain:
    """A step in bfloat16 as a chain, without the optimiser; nothing is computed or allocated."""
    step = STEPS[name.removesuffix("-bf16")]
    dtype = torch.bfloat16 if step.weights else torch.float32
    before = torch.get_default_dtype()
    with FakeTensorMode(allow_non_fake_inputs=True):
        torch.set_default_dtype(dtype)
        try:
            model = step.make().train()
        finally:
            torch.set_default_dtype(before)
        args = tuple(torch.empty(shape, dtype=dtype if kind is None else kind) for shape, kind in step.inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not step.weights):
        return profile(model, args, device=MACHINE, name=name)


def document(name: str) -> dict[str, Any]:
    """The file of one step, in the form of docs/profiles.md."""
    step, graph = STEPS[name.rpartition("-")[0]], record(name).to_json()
    gpu, link = machine(MACHINE)
    optimizer = "SGD with momentum" if step.sgd else "AdamW"
    half = "weights, gradients and optimiser state in bfloat16" if step.weights else "bfloat16 by autocast"
    return {
        "format": "memsched-graphs/1",
        "network": name.partition("-")[0],
        "provenance": {
            "source": f"{step.title}; bench/profiles/models, recorded with torch {VERSION} on tensors without data: "
            f"forward, loss, backward, {optimizer} with an op for each parameter; dropout, attention and norms saved "
            "as by the CUDA kernels; workspace inside kernels not included",
            "precision": half if name.endswith("bf16") else "float32",
            "times": describe(gpu),
            "gpu": f"{gpu.name} ({gpu.source})",
            "link": f"{link.name}: {link.source}",
            "link_bandwidth": link.bandwidth,
        },
        **structure(graph),
        "graphs": {name: numbers(graph)},
    }


def _each(parameters: list[torch.Tensor]) -> list[dict[str, Any]]:
    """A group for each parameter, so that a fused optimiser has an op for each."""
    return [{"params": [parameter]} for parameter in parameters]


def _sgd(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(_each(parameters), lr=0.1, momentum=0.9, fused=True)


def _adamw(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(_each(parameters), lr=1e-3, fused=True)
