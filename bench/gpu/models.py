"""The networks of the benchmark, each with its loss inside, so that every method runs the very same step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from memsched.torch import zoo

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}


class WithLoss(nn.Module):
    """Inputs and targets in, the loss out. A loss inside the model is planned with it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any, target: Any) -> Any:
        found = self.body(x)
        scores = found if isinstance(found, torch.Tensor) else found["logits"]
        return F.cross_entropy(scores.flatten(0, -2).float(), target.flatten())


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network to train.

    Attributes
    ----------
    model : WithLoss
    args : tuple of Tensor
    blocks : list of Module
        What people checkpoint one by one: residual blocks, dense layers, transformer blocks.
    sequential : (Module, nn.Sequential) or None
        A module whose forward is that of a sequential of many parts, and the sequential.
    optimizer : torch.optim.Optimizer
    """

    model: WithLoss
    args: tuple[torch.Tensor, ...]
    blocks: list[nn.Module]
    sequential: tuple[nn.Module, nn.Sequential] | None
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a network is made, and its size: `batch` of what `inputs` describes."""

    make: Callable[[], nn.Module]
    batch: int
    inputs: tuple[int, ...]  # shape of one image, or (tokens,)
    classes: int
    parts: Callable[[Any], tuple[list[nn.Module], tuple[nn.Module, nn.Sequential] | None]]
    adamw: bool = False


def _resnet(model: Any) -> Any:
    layers = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    stem = [model.conv1, model.bn1, model.relu, model.maxpool]
    return layers, (model, nn.Sequential(*stem, *layers, model.avgpool, nn.Flatten(), model.fc))


def _densenet(model: Any) -> Any:
    layers = [module for module in model.modules() if type(module).__name__ == "_DenseLayer"]
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.classifier]
    return layers, (model, nn.Sequential(*model.features, *head))


def _vit(model: Any) -> Any:
    return list(model.encoder.layers), (model.encoder.layers, model.encoder.layers)


def _gpt2(model: Any) -> Any:
    return list(model.transformer.h), None


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(zoo.torchvision().models, name)(**options)


def _small_resnet() -> nn.Module:
    models = zoo.torchvision().models
    model = models.ResNet(models.resnet.BasicBlock, [2, 2, 1, 1], num_classes=10)
    # The last layers have most of the parameters, beside which small activations would not matter.
    model.layer3, model.layer4, model.fc = nn.Sequential(), nn.Sequential(), nn.Linear(128, 10)
    return model


def _transformer(spec: str) -> Callable[[], nn.Module]:
    return lambda: zoo.build(spec, "1x8:int:8").model


LARGE = {
    "resnet152": Network(make=_vision("resnet152"), batch=128, inputs=(3, 224, 224), classes=1000, parts=_resnet),
    "densenet201": Network(make=_vision("densenet201"), batch=128, inputs=(3, 224, 224), classes=1000, parts=_densenet),
    "vit_l_16": Network(make=_vision("vit_l_16"), batch=64, inputs=(3, 224, 224), classes=1000, parts=_vit, adamw=True),
    "gpt2": Network(
        make=_transformer("transformers:gpt2"), batch=8, inputs=(1024,), classes=50257, parts=_gpt2, adamw=True
    ),
}
SMALL = {
    "resnet152": Network(make=_small_resnet, batch=16, inputs=(3, 64, 64), classes=10, parts=_resnet),
    "densenet201": Network(
        make=_vision("DenseNet", growth_rate=8, block_config=(3, 3), num_init_features=16, num_classes=10),
        batch=4,
        inputs=(3, 32, 32),
        classes=10,
        parts=_densenet,
    ),
    "vit_l_16": Network(
        make=_vision(
            "VisionTransformer",
            image_size=32,
            patch_size=8,
            num_layers=3,
            num_heads=2,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=10,
        ),
        batch=8,
        inputs=(3, 32, 32),
        classes=10,
        parts=_vit,
        adamw=True,
    ),
    "gpt2": Network(
        make=_transformer(
            "transformers:gpt2?n_layer=3&n_embd=64&n_head=2&vocab_size=256&n_positions=64&bos_token_id=0&eos_token_id=0"
        ),
        batch=4,
        inputs=(64,),
        classes=256,
        parts=_gpt2,
        adamw=True,
    ),
}


def make(name: str, *, small: bool, device: torch.device, scale: float = 1.0) -> Task:
    """A network on its device, the same at each call.

    Parameters
    ----------
    name : str
        Of `LARGE`; with `small`, its tiny cousin.
    scale : float
        Of the batch, for cards of another size.
    """
    network = (SMALL if small else LARGE)[name]
    torch.manual_seed(0)
    body = network.make().train()
    blocks, sequential = network.parts(body)
    batch = max(1, round(network.batch * scale))
    tokens = len(network.inputs) == 1
    shape = (batch, *network.inputs)
    x = torch.randint(0, network.classes, shape) if tokens else torch.randn(shape)
    target = torch.randint(0, network.classes, shape if tokens else (batch,))
    model = WithLoss(body).to(device)
    if sequential is not None:
        sequential[1].to(device)
    parameters = list(model.parameters())
    if network.adamw:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)
    return Task(
        model=model, args=(x.to(device), target.to(device)), blocks=blocks, sequential=sequential, optimizer=optimizer
    )
