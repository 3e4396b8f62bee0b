"""Cost of kernels by formula: seconds and workspace of convolutions and of operations that only move data.

    t = LAUNCH + max(flops / (peak x efficiency x utilisation), traffic / bandwidth)

The utilisation falls if the output, the length of the reduction or the other side of the matrix product is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from memsched.support import checks

FLOAT = 4  # bytes
LAUNCH = 1e-5  # seconds
_HALF = 24  # length of a reduction at which half of the rate is lost
_SHARED_COLUMNS = 16  # samples whose columns im2col holds at once
_TILE = 4  # side of Winograd's output tiles, F(4 x 4, 3 x 3)
_WINOGRAD = 36  # (4 + 3 - 1)^2
_FFT, _SPECTRUM = 32, 544  # side of the tiles, and complex numbers of a real tile's spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU by a few figures."""

    name: str
    memory: int  # bytes that a process can use
    peak: float  # float32 operations per second
    bandwidth: float  # bytes per second that kernels reach
    efficiency: dict[str, float]  # the share of the peak that each algorithm reaches on large convolutions
    half_output: float  # elements of an output at which half of the rate is lost
    link: float  # bytes per second to the host
    duplex: bool


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="k40m",
            memory=12 * 2**30,
            peak=4.29e12,
            bandwidth=0.75 * 288e9,
            efficiency={"implicit_gemm": 0.36, "gemm": 0.50, "winograd": 0.20, "fft": 0.18},
            half_output=2e5,
            link=10e9,
            duplex=False,
        ),
        Gpu(
            name="v100",
            memory=16_000_000_000,
            peak=15.7e12,
            bandwidth=0.78 * 900e9,
            efficiency={"implicit_gemm": 0.72, "gemm": 0.72, "winograd": 0.38, "fft": 0.30},
            half_output=8e5,
            link=12e9,
            duplex=True,
        ),
    )
}


def gpu_named(name: str) -> Gpu:
    """Look a GPU up, ignoring case; the error lists the GPUs."""
    return GPUS[checks.choice("gpu", name.lower() if isinstance(name, str) else name, GPUS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """A convolution at one batch size: channels in and out, side of the kernel, sides of the input and the output.

    Depths are for convolutions in three dimensions. The channels are divided among the groups.
    """

    batch: int
    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1
    height: int = 1
    width: int = 1
    out_height: int = 1
    out_width: int = 1
    depth: int = 1
    out_depth: int = 1
    kernel_depth: int = 1
    groups: int = 1

    @property
    def out_pixels(self) -> int:
        """Output pixels of one sample."""
        return self.out_depth * self.out_height * self.out_width

    @property
    def kernel_volume(self) -> int:
        return self.kernel_depth * self.kernel**2

    @property
    def patch(self) -> int:
        """The number of terms in the sum of one output element."""
        return self.channels // self.groups * self.kernel_volume

    def choices(self, gpu: Gpu, what: str, mask: bool = False) -> list[dict[str, Any]]:
        """The algorithms of a kernel, "fwd", "dgrad" or "wgrad"; the one without workspace comes first.

        `mask`: the gradient is masked by the input, which is then read too.
        """
        names = ["implicit_gemm", "gemm"]
        tiled = self.stride == 1 and self.kernel_depth == self.depth == self.groups == 1
        if tiled and self.kernel == 3:
            names.append("winograd")
        if tiled and 3 <= self.kernel <= 16:
            names.append("fft")
        inputs = self.batch * self.channels * self.depth * self.height * self.width
        outputs, weights = self.batch * self.filters * self.out_pixels, self.filters * self.patch
        moved = FLOAT * (inputs * (2 if mask else 1) + outputs + weights)
        found = []
        for name in names:
            flops, traffic, workspace = getattr(self, f"_{name}")()
            rate = gpu.peak * gpu.efficiency[name] * self._utilisation(gpu, what)
            slower = {"fwd": 1.0, "dgrad": 1.05, "wgrad": 1.10}[what]
            time = LAUNCH + max(slower * flops / rate, (moved + traffic) / gpu.bandwidth)
            found.append({"alg": name, "time": time, "workspace": workspace})
        return found

    def _utilisation(self, gpu: Gpu, what: str) -> float:
        pixels = self.batch * self.out_pixels
        channels, filters, outputs = self.channels // self.groups, self.filters // self.groups, self.filters * pixels
        reduction, other = {
            "fwd": (self.patch, filters),
            "dgrad": (filters * self.kernel_volume, channels),
            "wgrad": (pixels, min(filters, self.patch)),
        }[what]
        return (
            (outputs / (outputs + gpu.half_output)) * (reduction / (reduction + _HALF)) * (other / (other + _HALF / 2))
        )

    def _tiles(self, side: int) -> int:
        return math.ceil(self.out_height / side) * math.ceil(self.out_width / side)

    def _implicit_gemm(self) -> tuple[float, float, int]:
        """Operations, bytes moved beside input, weights and output, and workspace."""
        return 2.0 * self.batch * self.filters * self.out_pixels * self.patch, 0.0, 0

    def _gemm(self) -> tuple[float, float, int]:
        flops = self._implicit_gemm()[0]
        if self.kernel_volume == 1 and self.stride == 1:
            return flops, 0.0, 0
        columns = FLOAT * self.channels * self.kernel_volume * self.out_pixels
        return flops, float(columns * self.batch), columns * min(self.batch, _SHARED_COLUMNS)

    def _winograd(self) -> tuple[float, float, int]:
        tiles, both = self._tiles(_TILE) * self.batch, self.channels + self.filters
        transforms = FLOAT * _WINOGRAD * tiles * both
        weights = FLOAT * _WINOGRAD * self.channels * self.filters
        return 2.0 * _WINOGRAD * tiles * self.channels * self.filters, 2.0 * transforms, transforms + weights

    def _fft(self) -> tuple[float, float, int]:
        tiles, both = self._tiles(_FFT + 1 - self.kernel) * self.batch, self.channels + self.filters
        spectra = 2 * FLOAT * _SPECTRUM * tiles * both
        weights = 2 * FLOAT * _SPECTRUM * self.channels * self.filters
        transforms = 5 * _FFT**2 * math.log2(_FFT**2) / 2 * tiles * both  # tiles are real
        flops = 8.0 * _SPECTRUM * tiles * self.channels * self.filters + transforms
        return flops, 2.0 * spectra, spectra + weights


def moving(gpu: Gpu, traffic: float, workspace: int = 0) -> list[dict[str, Any]]:
    """The single choice of an operation that only moves bytes."""
    return [{"alg": "default", "time": LAUNCH + traffic / gpu.bandwidth, "workspace": workspace}]
