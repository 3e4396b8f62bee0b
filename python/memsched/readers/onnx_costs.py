"""What an op of an ONNX model takes: a roofline model of each, never a measurement."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from memsched.errors import InvalidInputError, shown

# As in memsched.torch, whose table of machines this reads; PyTorch itself is not needed here.
FLOPS_SHARE = 0.6
BANDWIDTH_SHARE = 0.75
LAUNCH_SECONDS = 4e-6

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What a data sheet says of a machine: operations per second by type, and bytes per second."""

    float32: float
    bandwidth: float
    convolutions: float  # operations per second of convolutions in float32
    halves: dict[str, float]  # by type: float16 and bfloat16

    def seconds(self, flops: int, moved: int, kind: str, convolution: bool) -> float:
        """The longer of arithmetic and memory traffic, and the launch of the kernel."""
        usual = self.convolutions if convolution and kind == "float32" else self.float32
        peak = self.halves.get(kind, usual)
        return max(flops / (FLOPS_SHARE * peak), moved / (BANDWIDTH_SHARE * self.bandwidth)) + LAUNCH_SECONDS


def speeds_of(device: str) -> Speeds:
    """The speeds of a machine in the table of memsched.torch, such as "v100"; a link behind a colon is ignored.

    Examples
    --------
    >>> speeds_of("a100").convolutions
    156000000000000.0
    """
    text = (resources.files("memsched") / "torch" / "machines.csv").read_text(encoding="utf-8")
    machines = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    name = device.strip().lower().partition(":")[0] if isinstance(device, str) else None
    if name not in machines:
        raise InvalidInputError(f"device is {shown(device)}; it must be one of {', '.join(machines)}")
    row = machines[name]
    float32 = float(row["float32"])
    return Speeds(
        float32=float32,
        bandwidth=float(row["memory_bandwidth"]),
        convolutions=float(row["tf32"] or float32),
        halves={kind: float(row[kind] or float32) for kind in ("float16", "bfloat16")},
    )


def flops_of(kind: str, attributes: dict[str, Any], inputs: Sequence[Shape | None], output: Shape) -> int:
    """Operations of arithmetic of a matrix product or a convolution; 0 for all else.

    Examples
    --------
    >>> flops_of("MatMul", {}, [(8, 3), (3, 5)], (8, 5))
    240
    >>> flops_of("Conv", {}, [(1, 3, 8, 8), (16, 3, 3, 3)], (1, 16, 6, 6))
    31104
    """
    one, other = [*inputs, None, None][:2]
    if one is None or other is None:
        return 0
    if kind == "MatMul" and one:
        return 2 * math.prod(output) * one[-1]
    if kind == "Gemm" and len(one) == 2:
        return 2 * math.prod(output) * one[0 if attributes.get("transA") else 1]
    if kind == "Conv":
        return 2 * math.prod(output) * math.prod(other[1:])
    if kind == "ConvTranspose":
        return 2 * math.prod(one) * math.prod(other[1:])
    return 0
