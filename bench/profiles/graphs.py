"""A training step of each network as a graph, and the graphs of one network packed into one file."""

from __future__ import annotations

import functools
import gzip
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import torch
from bench.profiles.chains import VERSION, rounded, to_bytes
from bench.profiles.kernels import CudaKernels
from bench.profiles.networks import MACHINE, Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

import memsched as ms
from memsched.torch import zoo
from memsched.torch.machines import machine
from memsched.torch.recorder.record import graph_all
from memsched.torch.roofline import Roofline, describe

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)


def record(name: str, source: Source) -> ms.Graph:
    """Forward, cross entropy, backward and SGD with momentum, all on tensors without data."""
    gpu, _ = machine(MACHINE)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    built = zoo.build(source.spec, source.input, device="cpu", fake=fake)
    first = built.args[0]
    with fake:
        targets = torch.zeros(first.shape if first.dim() == 2 else first.shape[:1], dtype=torch.int64)
    with CudaKernels():
        return graph_all(
            built.model, built.args, loss=_loss(targets), optimizer=SGD, times=Roofline(gpu), name=name
        ).graph


def _loss(targets: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """Cross entropy: of classes, or of each token's successor, which the targets are taken to be already."""

    def loss(outputs: Any) -> torch.Tensor:
        scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
        return cross_entropy(scores.flatten(0, -2), targets.flatten())

    return loss


def pack(network: str, note: str, graphs: Mapping[str, ms.Graph]) -> dict[str, Any]:
    """Graphs that differ in numbers only, as one document: names once, numbers for each. docs/profiles.md has the form.

    Raises
    ------
    ValueError
        They differ in more.
    """
    documents = [graph.to_json() for graph in graphs.values()]
    first = structure(documents[0])
    if any(structure(document) != first for document in documents):
        raise ValueError(f"the graphs of {network} differ in more than numbers; give each a file")
    gpu, link = machine(MACHINE)
    source = (
        f"{_versions(network)}, recorded on tensors without data: forward, cross entropy, backward, fused SGD "
        "with momentum; dropout and attention saved as by the CUDA kernels; workspace inside kernels not included"
    )
    return {
        "format": "memsched-graphs/1",
        "network": network,
        "provenance": {
            "source": "; ".join(part for part in (source, note) if part),
            "times": describe(gpu),
            "gpu": f"{gpu.name} ({gpu.source})",
            "link": f"{link.name}: {link.source}",
            "link_bandwidth": link.bandwidth,
        },
        **first,
        "graphs": {document["name"]: numbers(document) for document in documents},
    }


def _versions(network: str) -> str:
    package = "transformers" if network == "gpt2" else "torchvision"
    return f"{package} {importlib.metadata.version(package)} / torch {VERSION}"


def structure(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the graphs of one network have in common; tensors are read and written by their positions."""
    place = {tensor["name"]: position for position, tensor in enumerate(document["tensors"])}
    return {
        "tensors": [[tensor["name"], tensor["role"]] for tensor in document["tensors"]],
        "ops": [
            [
                *(op["name"], op["phase"], op["kind"], op["layer"], bool(op.get("once", False))),
                [place[tensor] for tensor in op["reads"]],
                [place[tensor] for tensor in op["writes"]],
            ]
            for op in document["ops"]
        ],
    }


def numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    choices = [op["choices"][0] for op in document["ops"]]
    return {
        "batch": document["batch"],
        "resident": document["resident"],
        "sizes": [tensor["size"] for tensor in document["tensors"]],
        "times": [rounded(choice["time"]) for choice in choices],
        "workspaces": [choice["workspace"] for choice in choices],
    }


def compress(document: Mapping[str, Any]) -> bytes:
    """The bytes of a file, without the time of day."""
    return gzip.compress(to_bytes(dict(document)), 9, mtime=0)
