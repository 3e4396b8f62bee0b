"""Networks that classify images: ViT-B/16, ConvNeXt-T, ResNet-50 and DenseNet-121."""

from __future__ import annotations

import torch
from bench.profiles.models.language import Block
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Classifier(nn.Module):
    """What comes before the head gives (batch, width)."""

    def __init__(self, body: nn.Module, width: int, classes: int = 1000):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(images)).float(), targets)


class Patches(nn.Module):
    """ViT up to its class token."""

    def __init__(self, layers: int, width: int, side: int):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.label = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.cut(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.label.expand(len(images), -1, -1), patches), dim=1) + self.places
        return self.norm(self.blocks(x))[:, 0]


def vit(side: int = 224) -> nn.Module:
    """ViT-B/16."""
    return Classifier(Patches(12, 768, side), 768)


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then two pointwise layers with channels last, scaled and added to the input."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.gelu(self.inner(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        return x + (self.scale * self.outer(inner)).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """ConvNeXt-T, without stochastic depth."""
    widths = (96, 192, 384, 768)
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    for level, (width, depth) in enumerate(zip(widths, (3, 3, 9, 3), strict=True)):
        if level:
            parts += [ChannelNorm(widths[level - 1]), nn.Conv2d(widths[level - 1], width, 2, 2)]
        parts += [ConvNextBlock(width) for _ in range(depth)]
    body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768))
    return Classifier(body, 768)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, added to the input; a stride is that of the 3 x 3."""

    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        short = nn.Sequential(nn.Conv2d(before, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.short = nn.Identity() if before == 4 * width and stride == 1 else short

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.bn1(self.conv1(x)), inplace=True)
        inner = F.relu(self.bn2(self.conv2(inner)), inplace=True)
        inner = self.bn3(self.conv3(inner))
        inner += self.short(x)
        return F.relu(inner, inplace=True)


def resnet50(depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    """ResNet-50 as in torchvision."""
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for level, depth in enumerate(depths):
        width = 64 * 2**level
        for place in range(depth):
            parts.append(Bottleneck(before, width, 2 if level and not place else 1))
            before = 4 * width
    return Classifier(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten()), before)


class DenseLayer(nn.Module):
    """Reads all that the layers before it made, and adds 32 channels."""

    def __init__(self, before: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(before), nn.Conv2d(before, 128, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, made: list[torch.Tensor]) -> torch.Tensor:
        inner = self.conv1(F.relu(self.norm1(torch.cat(made, 1)), inplace=True))
        return self.conv2(F.relu(self.norm2(inner), inplace=True))


class DenseBlock(nn.ModuleList):
    """Dense layers, and all that they made as one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer in self:
            made.append(layer(made))
        return torch.cat(made, 1)


def densenet121() -> nn.Module:
    """DenseNet-121 as in torchvision."""
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    width, depths = 64, (6, 12, 24, 16)
    for level, depth in enumerate(depths):
        parts.append(DenseBlock(DenseLayer(width + 32 * place) for place in range(depth)))
        width += 32 * depth
        parts.append(nn.BatchNorm2d(width))
        if level < len(depths) - 1:
            parts += [nn.ReLU(inplace=True), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            width //= 2
    parts += [nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*parts), width)
