"""The networks of bench.compiled: their loss is inside, and they have blocks that people checkpoint one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from memsched.torch import zoo


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a network is made.

    Attributes
    ----------
    make : callable
        Gives the network: called with `inputs`, it returns the loss.
    inputs : callable
    blocks : callable
        Of a network, those that repeat, in the order in which they run.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    blocks: Callable[[Any], Sequence[nn.Module]]


class Small(nn.Module):
    """Linear layers and rectifiers, whose loss is a sum."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*(one for _ in range(layers) for one in (nn.Linear(width, width), nn.ReLU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found


class Block(nn.Module):
    """A transformer's block, without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A GPT."""

    def __init__(self, width: int = 128, blocks: int = 8, heads: int = 4, tokens: int = 128, words: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Double(nn.Module):
    """A U-Net's block: two convolutions with their norms and rectifiers."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inward, outward, 3, padding=1, bias=False), nn.BatchNorm2d(outward), nn.ReLU()),
            *(nn.Conv2d(outward, outward, 3, padding=1, bias=False), nn.BatchNorm2d(outward), nn.ReLU()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(x)
        return found


class UNet(nn.Module):
    """Down, up, and a connection at each scale."""

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128), classes: int = 8) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.first = Double(3, widths[0])
        self.down = nn.ModuleList(Double(a, b) for a, b in pairs)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs))
        self.up = nn.ModuleList(Double(2 * a, a) for a, _ in reversed(pairs))
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat((kept.pop(), widen(x)), 1))
        return F.cross_entropy(self.last(x), labels)


class WithLoss(nn.Module):
    """A classifier, and its loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), labels)


def _vision(name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: WithLoss(getattr(zoo.torchvision().models, name)(*args, **options))


def _convnext() -> nn.Module:
    models = zoo.torchvision().models
    widths = [(32, 64, 2), (64, 128, 4), (128, None, 2)]
    setting = [models.convnext.CNBlockConfig(*one) for one in widths]
    return WithLoss(models.ConvNeXt(setting, stochastic_depth_prob=0.0, num_classes=100))


def _resnet() -> nn.Module:
    models = zoo.torchvision().models
    return WithLoss(models.ResNet(models.resnet.Bottleneck, [3, 4, 6, 3], num_classes=100, width_per_group=16))


def _hugging(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        zoo.torchvision()  # transformers imports it, and fails where its compiled half is missing
        import transformers

        model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(use_cache=False, **options))
        return model

    return make


def images(batch: int, side: int, classes: int, x: str = "x") -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {x: torch.randn(batch, 3, side, side), "labels": torch.randint(0, classes, (batch,))}


def _tokens(batch: int, tokens: int, words: int, *, mask: bool = False) -> Callable[[], dict[str, torch.Tensor]]:
    def make() -> dict[str, torch.Tensor]:
        ids, labels = (torch.randint(3, words, (batch, tokens)) for _ in range(2))
        lengths = torch.linspace(tokens // 2, tokens, batch).int()
        padding = (torch.arange(tokens) < lengths[:, None]).long()
        return {"input_ids": ids, "labels": labels} | ({"attention_mask": padding} if mask else {})

    return make


def _own_tokens(batch: int, tokens: int, words: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {name: torch.randint(0, words, (batch, tokens)) for name in ("ids", "labels")}


def _pixels(batch: int, side: int, classes: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {
        "x": torch.randn(batch, 3, side, side),
        "labels": torch.randint(0, classes, (batch, side, side)),
    }


def _resnet_blocks(model: Any) -> Sequence[nn.Module]:
    body = model.body
    return [block for layer in (body.layer1, body.layer2, body.layer3, body.layer4) for block in layer]


def _of_type(name: str) -> Callable[[Any], Sequence[nn.Module]]:
    return lambda model: [module for module in model.modules() if type(module).__name__ == name]


NETWORKS = {
    "gpt": Network(make=Transformer, inputs=_own_tokens(8, 128, 512), blocks=lambda model: model.blocks),
    "llama": Network(
        make=_hugging(
            *("LlamaForCausalLM", "LlamaConfig"),
            **{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 8},
            **{"num_attention_heads": 4, "num_key_value_heads": 2},
        ),
        inputs=_tokens(8, 128, 512, mask=True),
        blocks=lambda model: model.model.layers,
    ),
    "bert": Network(
        make=_hugging(
            *("BertForMaskedLM", "BertConfig"),
            **{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 512},
            **{"num_hidden_layers": 6, "num_attention_heads": 4},
        ),
        inputs=_tokens(8, 128, 512, mask=True),
        blocks=lambda model: model.bert.encoder.layer,
    ),
    "vit": Network(
        make=_hugging(
            *("ViTForImageClassification", "ViTConfig"),
            **{"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 512},
            **{"image_size": 64, "patch_size": 8, "num_labels": 100},
        ),
        inputs=images(16, 64, 100, "pixel_values"),
        blocks=_of_type("ViTLayer"),
    ),
    "t5": Network(
        make=_hugging(
            *("T5ForConditionalGeneration", "T5Config"),
            **{"vocab_size": 512, "d_model": 128, "d_kv": 32, "d_ff": 512},
            **{"num_layers": 4, "num_heads": 4, "decoder_start_token_id": 0},
        ),
        inputs=_tokens(8, 96, 512, mask=True),
        blocks=_of_type("T5Block"),
    ),
    "resnet": Network(make=_resnet, inputs=images(8, 64, 100), blocks=_resnet_blocks),
    "unet": Network(make=UNet, inputs=_pixels(4, 64, 8), blocks=_of_type("Double")),
    "convnext": Network(make=_convnext, inputs=images(8, 64, 100), blocks=_of_type("CNBlock")),
    "tiny": Network(
        make=lambda: Transformer(width=16, blocks=4, heads=2, tokens=8, words=32),
        inputs=_own_tokens(2, 8, 32),
        blocks=lambda model: model.blocks,
    ),
}
"""By name. `tiny` is for the cost of Python: its operations compute almost nothing."""

SMALL = ((4, 16, 8), (8, 64, 32), (16, 64, 32), (8, 128, 64), (8, 256, 128))
"""Layers, their width and the batch of small steps, of which Python takes much or little."""
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "Dynamo": {"backend": "eager"},
    "AOTAutograd": {"backend": "aot_eager"},
    "ours": {"backend": "memsched", "options": {"budget": "1TB"}},
    "Inductor": {"backend": "inductor"},
    "ours, Inductor": {"backend": "memsched", "options": {"budget": "1TB", "mode": "inductor"}},
}
"""How they run, by what torch.compile is told; nothing is recomputed."""
