"""Layers of the networks used by the papers on graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from memsched.problems.analytic.builder import Builder, Map

SIDE = 224
_WIDTHS = (64, 128, 256, 512, 512)


def _trunk(b: Builder, counts: Sequence[int]) -> Map:
    x = b.input("x", 3, SIDE)
    for block, (count, width) in enumerate(zip(counts, _WIDTHS, strict=True), 1):
        for k in range(1, count + 1):
            x = b.conv(f"conv{block}_{k}", x, width, 3, pad=1, relu=True)
        x = b.pool(f"pool{block}", x, 2, 2)
    return x


def _classified(b: Builder, x: Map) -> None:
    x = b.linear("fc6", x, 4096, relu=True)
    x = b.linear("fc7", x, 4096, relu=True)
    b.loss(b.linear("fc8", x, 1000))


def _vgg(b: Builder, *, counts: Sequence[int]) -> None:
    _classified(b, _trunk(b, counts))


def _fcn(b: Builder) -> None:
    """VGG-16's trunk, two large convolutions for its fully connected layers, scores of 21 classes, upsampled."""
    x = _trunk(b, (2, 2, 3, 3, 3))
    x = b.conv("fc6", x, 4096, 7, pad=3, relu=True)
    x = b.conv("fc7", x, 4096, 1, relu=True)
    b.loss(b.upsample("upsample", b.conv("score", x, 21, 1), SIDE))


def _alexnet(b: Builder) -> None:
    x = b.input("x", 3, 227)
    x = b.conv("conv1", x, 96, 11, stride=4, relu=True)
    x = b.pool("pool1", x, 3, 2)
    x = b.conv("conv2", x, 256, 5, pad=2, relu=True)
    x = b.pool("pool2", x, 3, 2)
    x = b.conv("conv3", x, 384, 3, pad=1, relu=True)
    x = b.conv("conv4", x, 384, 3, pad=1, relu=True)
    x = b.conv("conv5", x, 256, 3, pad=1, relu=True)
    _classified(b, b.pool("pool5", x, 3, 2))


def resnet(b: Builder, *, counts: Sequence[int], bottleneck: bool) -> None:
    """As in Chainer: outputs of convolutions and ReLUs are kept; a block's first convolution has the stride."""
    x = b.norm_relu("relu1", b.conv("conv1", b.input("x", 3, SIDE), 64, 7, stride=2, pad=3))
    x = b.pool("pool1", x, 3, 2)
    for stage, (count, width) in enumerate(zip(counts, (64, 128, 256, 512), strict=True), 2):
        for k in range(1, count + 1):
            stride = 2 if k == 1 and stage > 2 else 1
            name, filters = f"res{stage}_{k}", width * (4 if bottleneck else 1)
            plain = x.channels == filters and stride == 1
            shortcut = x if plain else b.conv(f"{name}.shortcut", x, filters, 1, stride=stride)
            sizes = ((width, 1), (width, 3), (filters, 1)) if bottleneck else ((width, 3), (filters, 3))
            for number, (channels, kernel) in enumerate(sizes, 1):
                own = stride if number == 1 else 1
                c = b.conv(f"{name}.conv{number}", x, channels, kernel, stride=own, pad=kernel // 2)
                if number < len(sizes):
                    x = b.norm_relu(f"{name}.relu{number}", c)
            x = b.norm_add_relu(f"{name}.relu", c, shortcut, norm=not plain)
    x = b.pool("pool5", x, 0, 1)
    b.loss(b.linear("fc", x, 1000))


def _resnext101_3d(b: Builder, frames: int, side: int) -> None:
    """ResNeXt-101 on clips (Hara et al., CVPR 2018): kernels of three dimensions, 32 groups, 400 classes of actions.

    The grouped convolution has the stride of its residual block. Maps are kept as in `resnet`. The pooling has no
    padding and rounds the sides up, which gives the sides of the original.
    """
    conv1 = b.conv("conv1", b.input("x", 3, side, frames), 64, 7, stride=2, pad=3, along=(7, 1, 3))
    x = b.pool("pool1", b.norm_relu("relu1", conv1), 3, 2, along=(3, 2, 0))
    for stage, (count, width) in enumerate(zip((3, 4, 23, 3), (128, 256, 512, 1024), strict=True), 2):
        for k in range(1, count + 1):
            stride = 2 if k == 1 and stage > 2 else 1
            name = f"res{stage}_{k}"
            shortcut = x if k > 1 else b.conv(f"{name}.shortcut", x, 2 * width, 1, stride=stride, along=(1, stride, 0))
            x = b.norm_relu(f"{name}.relu1", b.conv(f"{name}.conv1", x, width, 1))
            c = b.conv(f"{name}.conv2", x, width, 3, stride=stride, pad=1, along=(3, stride, 1), groups=32)
            c = b.conv(f"{name}.conv3", b.norm_relu(f"{name}.relu2", c), 2 * width, 1)
            x = b.norm_add_relu(f"{name}.relu", c, shortcut, norm=k == 1)
    b.loss(b.linear("fc", b.pool("pool5", x, 0, 1), 400))


CLIPS = ("resnext101_3d",)  # networks whose input has frames
NETWORKS: dict[str, Callable[..., None]] = {
    "alexnet": _alexnet,
    "fcn": _fcn,
    "resnet34": partial(resnet, counts=(3, 4, 6, 3), bottleneck=False),
    "resnet50": partial(resnet, counts=(3, 4, 6, 3), bottleneck=True),
    "resnext101_3d": _resnext101_3d,
    "vgg16": partial(_vgg, counts=(2, 2, 3, 3, 3)),
    "vgg19": partial(_vgg, counts=(2, 2, 4, 4, 4)),
    "vgg101": partial(_vgg, counts=(12, 12, 24, 25, 25)),
}
