"""Networks whose results are as large as images: a diffusion U-Net, and a detector with a feature pyramid."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class TimedBlock(nn.Module):
    """A residual block of a diffusion U-Net, told the time by what it adds in between."""

    def __init__(self, before: int, width: int, time: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, before), nn.Conv2d(before, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.norm2, self.conv2 = nn.GroupNorm(32, width), nn.Conv2d(width, width, 3, padding=1)
        self.short = nn.Identity() if before == width else nn.Conv2d(before, width, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = self.conv1(F.silu(self.norm1(x)))
        inner = inner + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(inner)))


class ImageAttention(nn.Module):
    """Attention between all places of an image, heads of 64 channels."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.inputs = nn.GroupNorm(32, width), nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        parts = self.inputs(self.norm(x)).flatten(2).chunk(3, dim=1)
        q, k, v = (part.unflatten(1, (-1, 64)).transpose(2, 3) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(2, 3).reshape(x.shape))


class Timed(nn.ModuleList):
    """One after the other, each told the time."""

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        for part in self:
            x = part(x, time)
        return x


class DiffusionUnet(nn.Module):
    """Predicts noise: two residual blocks a level going down, three going up, attention at the lower levels."""

    def __init__(self, width: int = 128, factors: tuple[int, ...] = (1, 2, 4), attended: int = 2, channels: int = 3):
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.start = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        now, skips = width, [width]
        for level, factor in enumerate(factors):
            for _ in range(2):
                self.down.append(self.block(now, factor * width, time, level >= attended))
                now = factor * width
                skips.append(now)
            if level < len(factors) - 1:
                self.shrink.append(nn.Conv2d(now, now, 3, 2, 1))
                skips.append(now)
        self.middle = Timed([TimedBlock(now, now, time), ImageAttention(now), TimedBlock(now, now, time)])
        for level in reversed(range(len(factors))):
            for _ in range(3):
                self.up.append(self.block(now + skips.pop(), factors[level] * width, time, level >= attended))
                now = factors[level] * width
            if level:
                self.grow.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.end = nn.GroupNorm(32, now), nn.Conv2d(now, channels, 3, padding=1)

    def block(self, before: int, width: int, time: int, attended: bool) -> Timed:
        return Timed([TimedBlock(before, width, time), *([ImageAttention(width)] if attended else [])])

    def forward(self, images: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        half = torch.arange(self.width // 2, device=images.device, dtype=torch.float32)
        angles = times[:, None] * torch.exp(half * (-math.log(10000) / (self.width // 2)))
        time = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1).to(images.dtype))
        x = self.start(images)
        skips = [x]
        for place, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if place % 2 and place // 2 < len(self.shrink):
                x = self.shrink[place // 2](x)
                skips.append(x)
        x = self.middle(x, time)
        for place, block in enumerate(self.up):
            x = block(torch.cat((x, skips.pop()), 1), time)
            if place % 3 == 2 and place // 3 < len(self.grow):
                x = self.grow[place // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return F.mse_loss(self.end(F.silu(self.norm(x))).float(), noise)


class Unit(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, before: int, width: int, side: int = 1, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(before, width, side, stride, (side - 1) // 2, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.conv(x)), inplace=True)


class Inner(nn.Module):
    """1 x 1 and 3 x 3; on the way down added to the input."""

    def __init__(self, width: int, added: bool):
        super().__init__()
        self.narrow, self.wide, self.added = Unit(width, width), Unit(width, width, 3), added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.wide(self.narrow(x))
        return x + inner if self.added else inner


class CrossStage(nn.Module):
    """Half of the channels goes through `depth` blocks, the other half past them."""

    def __init__(self, before: int, width: int, depth: int, added: bool = True):
        super().__init__()
        self.past, self.through = Unit(before, width // 2), Unit(before, width // 2)
        self.blocks = nn.Sequential(*(Inner(width // 2, added) for _ in range(depth)))
        self.join = Unit(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(torch.cat((self.blocks(self.through(x)), self.past(x)), 1))


class Pyramid(nn.Module):
    """Pools of three sizes, concatenated."""

    def __init__(self, width: int):
        super().__init__()
        self.narrow, self.join = Unit(width, width // 2), Unit(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [self.narrow(x)]
        for _ in range(3):
            found.append(F.max_pool2d(found[-1], 5, 1, 2))
        return self.join(torch.cat(found, 1))


class Detector(nn.Module):
    """A cross-stage backbone with a path aggregation neck and three heads, as in YOLOv5 m."""

    def __init__(self, width: int = 48, depth: int = 2, classes: int = 80):
        super().__init__()
        w, d = [width * 2**level for level in range(5)], depth
        self.stem = nn.Sequential(Unit(3, w[0], 6, 2), Unit(w[0], w[1], 3, 2), CrossStage(w[1], w[1], d))
        self.level3 = nn.Sequential(Unit(w[1], w[2], 3, 2), CrossStage(w[2], w[2], 2 * d))
        self.level4 = nn.Sequential(Unit(w[2], w[3], 3, 2), CrossStage(w[3], w[3], 3 * d))
        self.level5 = nn.Sequential(Unit(w[3], w[4], 3, 2), CrossStage(w[4], w[4], d), Pyramid(w[4]))
        self.lateral5, self.merge4 = Unit(w[4], w[3]), CrossStage(w[4], w[3], d, added=False)
        self.lateral4, self.merge3 = Unit(w[3], w[2]), CrossStage(w[3], w[2], d, added=False)
        self.down3, self.back4 = Unit(w[2], w[2], 3, 2), CrossStage(w[3], w[3], d, added=False)
        self.down4, self.back5 = Unit(w[3], w[3], 3, 2), CrossStage(w[4], w[4], d, added=False)
        self.heads = nn.ModuleList(nn.Conv2d(channels, 3 * (classes + 5), 1) for channels in w[2:])

    def forward(self, images: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        three = self.level3(self.stem(images))
        four = self.level4(three)
        lateral5 = self.lateral5(self.level5(four))
        lateral4 = self.lateral4(self.merge4(torch.cat((F.interpolate(lateral5, scale_factor=2.0), four), 1)))
        out3 = self.merge3(torch.cat((F.interpolate(lateral4, scale_factor=2.0), three), 1))
        out4 = self.back4(torch.cat((self.down3(out3), lateral4), 1))
        out5 = self.back5(torch.cat((self.down4(out4), lateral5), 1))
        total = images.new_zeros((), dtype=torch.float32)
        for head, found, target in zip(self.heads, (out3, out4, out5), targets, strict=True):
            total = total + F.binary_cross_entropy_with_logits(head(found).float(), target)
        return total
