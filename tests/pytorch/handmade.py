"""Hand-written networks, each with a trait that capture or execution may get wrong: functions make (model, args)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

Made = tuple[nn.Module, tuple[Any, ...]]


class TiedWeights(nn.Module):
    """The embedding is also the output projection, and one block is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU())
        self.last = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        hidden = self.block(self.embedding(ids))
        hidden = self.block(hidden)
        return self.head(self.last(hidden))


def tied_weights() -> Made:
    return TiedWeights(), (torch.randint(0, 50, (4, 8)),)


def dropout_mlp() -> Made:
    layers = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.3))]
    return nn.Sequential(*layers, nn.Linear(32, 4)), (torch.randn(8, 32),)


def in_place_batch_norm() -> Made:
    """Activations overwritten where they stand, and running statistics."""
    layers: list[nn.Module] = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 64, 5)), (torch.randn(4, 3, 8, 8),)


def frozen_prefix() -> Made:
    """The first layers take no gradient; what they give out still depends on the batch."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    for parameter in model[:2].parameters():
        parameter.requires_grad_(False)
    return model, (torch.randn(8, 16),)


class Trunk(nn.Module):
    """Three layers, whose hidden value is given out beside the result: as a dict or as a tuple."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.as_dict = as_dict
        self.body = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU())
        self.head, self.side = nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        first, second = self.head(hidden), self.side(hidden)
        return {"logits": first, "hidden": hidden} if self.as_dict else (first, second)


def dict_output() -> Made:
    return Trunk(as_dict=True), (torch.randn(8, 16),)


def two_outputs() -> Made:
    return Trunk(as_dict=False), (torch.randn(8, 16),)


class SharedMask(nn.Module):
    """A mask of floats, made once from the shape, is added in all layers: it is no activation."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.ModuleList(nn.Linear(16, 48) for _ in range(3))
        self.out = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Any) -> Any:
        size = x.shape[1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        for query, out in zip(self.query, self.out, strict=True):
            q, k, v = query(x).chunk(3, dim=-1)
            weight = torch.softmax(q @ k.transpose(-1, -2) / 4 + mask, dim=-1)
            x = x + out(weight @ v)
        return x


def shared_mask() -> Made:
    return SharedMask(), (torch.randn(2, 6, 16),)


class PositionBias(nn.Module):
    """As in T5: the bias of positions is computed from a parameter in the first layer and added in all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(11, 2)
        self.layers = nn.ModuleList(nn.Linear(16, 48) for _ in range(3))

    def forward(self, x: Any) -> Any:
        place = torch.arange(x.shape[1])
        bias = self.bias(place[:, None] - place[None, :] + 5).permute(2, 0, 1)
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])
            x = x + seen.transpose(1, 2).flatten(2)
        return x


def position_bias() -> Made:
    return PositionBias(), (torch.randn(2, 6, 16),)


class Recurrent(nn.Module):
    """Two LSTM layers; only the output of the last step is used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> Made:
    return Recurrent(), (torch.randn(4, 6, 8),)


class DataDependent(nn.Module):
    """Which layer runs depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.left(x) if x.sum() > 0 else self.right(x))


def data_dependent() -> Made:
    return DataDependent(), (torch.randn(4, 16),)


def _block(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(2, out), nn.SiLU())


class UNet(nn.Module):
    """Long skips from the way down to the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, 8), _block(8, 16)])
        self.middle = _block(16, 16)
        self.up = nn.ModuleList([_block(32, 8), _block(16, 8)])
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat([x, skips.pop()], dim=1))
        return self.head(x)


def unet() -> Made:
    return UNet(), (torch.randn(2, 3, 16, 16),)


def spectral_norm() -> Made:
    """Weights computed from parameters and from buffers that each forward writes."""
    norm = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(norm(nn.Linear(16, 16)), nn.ReLU(), norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 2))
    return model, (torch.randn(8, 16),)


ALL: tuple[Callable[[], Made], ...] = (
    data_dependent,
    dict_output,
    dropout_mlp,
    frozen_prefix,
    in_place_batch_norm,
    lstm,
    position_bias,
    shared_mask,
    spectral_norm,
    tied_weights,
    two_outputs,
    unet,
)
