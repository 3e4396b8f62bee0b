"""What an op of an ONNX model takes: a roofline model of each, never a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from memsched.errors import InvalidInputError, shown
from memsched.problems.machines import MACHINES, Machine

Shape = tuple[int, ...]


def speeds_of(device: str) -> Machine:
    """A machine by its name, such as "v100"; a link behind a colon is ignored.

    Examples
    --------
    >>> speeds_of("a100").tf32
    156000000000000.0
    """
    name = device.strip().lower().partition(":")[0] if isinstance(device, str) else None
    if name not in MACHINES:
        raise InvalidInputError(f"device is {shown(device)}; it must be one of {', '.join(MACHINES)}")
    return MACHINES[name]


def flops_of(op_type: str, attributes: dict[str, Any], inputs: Sequence[Shape | None], output: Shape) -> int:
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
    if op_type == "MatMul" and one:
        return 2 * math.prod(output) * one[-1]
    if op_type == "Gemm" and len(one) == 2:
        return 2 * math.prod(output) * one[0 if attributes.get("transA") else 1]
    if op_type == "Conv":
        return 2 * math.prod(output) * math.prod(other[1:])
    if op_type == "ConvTranspose":
        return 2 * math.prod(one) * math.prod(other[1:])
    return 0
