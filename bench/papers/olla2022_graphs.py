"""The networks of Steiner et al., OLLA, as training graphs, with the inputs and the SGD of the authors' benchmark."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import memsched as ms

__all__ = ["BATCHES", "NETWORKS", "OPTIMIZERS", "Captured", "Network", "built", "capture", "captured", "optimizer_of"]

BATCHES = (1, 32)
TOKENS = 4  # "Hello world" with its two marks, the input of the published benchmark
VOCABULARY = 250002


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of the paper.

    Attributes
    ----------
    title : str
        In the paper's words.
    build : callable
        The model, on any device.
    args : callable
        From the batch to the shapes of its inputs; whole numbers where the network takes token numbers.
    tokens : bool
    """

    title: str
    build: Callable[[], Any]
    args: Callable[[int], tuple[tuple[int, ...], ...]]
    tokens: bool = False


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        from memsched.torch.zoo import torchvision

        return torchvision().models.get_model(name, weights=None, **options)

    return build


def _transformer(**options: Any) -> Callable[[], Any]:
    def build() -> Any:
        import torch

        return torch.nn.Transformer(**options)

    return build


def _xlmr() -> Any:
    from memsched.torch.zoo import torchvision

    torchvision()  # transformers imports it
    import transformers

    config = transformers.XLMRobertaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=514, type_vocab_size=1, attn_implementation="eager"
    )
    return transformers.XLMRobertaModel(config, add_pooling_layer=False)


def _images(batch: int) -> tuple[tuple[int, ...], ...]:
    return ((batch, 3, 224, 224),)


def _sequences(batch: int) -> tuple[tuple[int, ...], ...]:
    return ((10, batch, 512), (20, batch, 512))


NETWORKS = {
    "alexnet": Network(title="AlexNet", build=_vision("alexnet"), args=_images),
    "vgg11": Network(title="VGG-11", build=_vision("vgg11"), args=_images),
    "vgg16": Network(title="VGG-16", build=_vision("vgg16"), args=_images),
    "vgg19": Network(title="VGG-19", build=_vision("vgg19"), args=_images),
    "googlenet": Network(title="GoogLeNet", build=_vision("googlenet", init_weights=False), args=_images),
    "resnet18": Network(title="ResNet-18", build=_vision("resnet18"), args=_images),
    "resnet50": Network(title="ResNet-50", build=_vision("resnet50"), args=_images),
    "resnet3d": Network(title="ResNet3D-18", build=_vision("r3d_18"), args=lambda batch: ((batch, 3, 1, 112, 112),)),
    "mobilenet": Network(title="MobileNet v2", build=_vision("mobilenet_v2"), args=_images),
    "mnasnet": Network(title="MNASNet 0.5", build=_vision("mnasnet0_5"), args=_images),
    "efficientnet": Network(title="EfficientNet-B0", build=_vision("efficientnet_b0"), args=_images),
    "vit": Network(title="ViT-B/16", build=_vision("vit_b_16"), args=_images),
    "transformer": Network(
        title="Transformer, 1+1 layers",
        build=_transformer(nhead=1, num_encoder_layers=1, num_decoder_layers=1),
        args=_sequences,
    ),
    "transformer_dflt": Network(title="Transformer, 6+6 layers", build=_transformer(), args=_sequences),
    "xlmr": Network(title="XLM-R base", build=_xlmr, args=lambda batch: ((batch, TOKENS),), tokens=True),
}
OPTIMIZERS = ("sgd", "adam")


def optimizer_of(name: str) -> Callable[[list[Any]], Any]:
    """One update a parameter, as the graphs of the paper have."""
    import torch

    if name == "sgd":
        return partial(torch.optim.SGD, lr=0.1, foreach=False)
    return partial(torch.optim.Adam, lr=1e-3, foreach=False, fused=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One training step.

    Attributes
    ----------
    graph : Graph
        Its ops may be reordered.
    resident : tuple of int
        Bytes of each parameter, buffer and state of the optimiser; together `graph.resident`.
    """

    graph: ms.Graph
    resident: tuple[int, ...]


def built(network: str) -> Any:
    """The model, in train mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says about the settings of these networks
        return NETWORKS[network].build().train()


def capture(network: str, batch: int, optimizer: str = "sgd") -> Captured:
    """Record a step without allocating anything; the loss is the sum of the outputs.

    Parameters
    ----------
    network : str
        Of `NETWORKS`.
    batch : int
    optimizer : str
        "sgd" or "adam".
    """
    import torch

    from memsched.torch import weightless
    from memsched.torch.recorder.record import graph

    known = NETWORKS[network]
    model = weightless.construct(partial(built, network))
    kind = torch.int64 if known.tokens else torch.float32
    with torch.device("meta"):
        args = tuple(torch.zeros(shape, dtype=kind) for shape in known.args(batch))
    name = f"{network}-b{batch}-{optimizer}"
    made = graph(model, args, optimizer=optimizer_of(optimizer), name=name, reorderable=True)
    weights = [weight.numel() * weight.element_size() for weight in model.parameters()]
    resident = [*weights, *(buffer.numel() * buffer.element_size() for buffer in model.buffers())]
    if optimizer == "adam":
        resident += [count for weight in weights for count in (4, weight, weight)]  # a counter and two moments
    if sum(resident) != made.resident:
        raise ValueError(f"{name} has {made.resident} resident bytes, but its tensors have {sum(resident)}")
    return Captured(graph=made, resident=tuple(resident))


def captured(network: str, batch: int, optimizer: str, folder: Path | None) -> Captured:
    """As `capture`, from a folder if the step was captured into it before."""
    if folder is None:
        return capture(network, batch, optimizer)
    path = folder / f"{network}-b{batch}-{optimizer}.json.gz"
    if path.exists():
        document = json.loads(gzip.decompress(path.read_bytes()))
        return Captured(graph=ms.Graph.from_json(document["graph"]), resident=tuple(document["resident"]))
    made = capture(network, batch, optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"graph": made.graph.to_json(), "resident": made.resident}
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return made
