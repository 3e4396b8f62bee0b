"""What is known of the ops of ONNX: which are views, what their derivatives read, and how much they compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Shape = tuple[int, ...]

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""The output has the bytes of the first input, and is the same tensor."""

SHAPES = frozenset({"Shape", "Size"})
"""They read what is known of a tensor, not its bytes."""

_NOTHING = {
    *("Add", "Sub", "Sum", "Neg", "Mean", "Concat", "Split", "Slice", "Pad", "Transpose", "Cast", "CastLike", "Expand"),
    *("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Where", "Tile", "Resize", "Upsample"),
    *("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "DepthToSpace", "SpaceToDepth", "CumSum", "Trilu"),
}
_OUTPUTS = {
    *("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Elu", "Selu", "Exp", "Sqrt", "Reciprocal"),
}
_BOTH = {
    *("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Max", "Min", "ReduceProd", "ReduceL2", "LpNormalization"),
    *("LSTM", "GRU", "RNN"),
}
MASKED = "Dropout"
"""Its derivative reads the mask alone."""

_KINDS = {
    **{"Conv": "conv", "ConvTranspose": "conv", "Gemm": "fc", "MatMul": "fc", "BatchNormalization": "bn"},
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), "pool"),
}


PARTS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""They read of their first input as many bytes as they write."""


def type_of(node: Any) -> str:
    """The type of an op in ONNX; one of another domain, of which nothing is known, has that before its name."""
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def reads_inputs(op_type: str) -> bool:
    """Whether the derivative reads the inputs that have a gradient. It always reads those of whole numbers."""
    return op_type not in _NOTHING and op_type not in _OUTPUTS and op_type != MASKED


def reads_outputs(op_type: str) -> bool:
    """Whether the derivative reads the outputs."""
    return op_type in _OUTPUTS or op_type in _BOTH


def kind_of(op_type: str) -> str:
    """The kind of an op, in the words of `Graph`."""
    return _KINDS.get(op_type, op_type.rpartition("::")[2].lower())


def statistics_of(op_type: str) -> range:
    """Positions of the inputs that are no parameters, although they are numbers in the file: running statistics."""
    return range(3, 5) if op_type == "BatchNormalization" else range(0)


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
