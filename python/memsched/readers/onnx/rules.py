"""What is known of the ops of ONNX: which are views, and what their derivatives read."""

from __future__ import annotations

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


def reads_inputs(op_type: str) -> bool:
    """Whether the derivative reads the inputs that have a gradient. It always reads those of whole numbers."""
    return op_type not in _NOTHING and op_type not in _OUTPUTS and op_type != MASKED


def reads_outputs(op_type: str) -> bool:
    """Whether the derivative reads the outputs."""
    return op_type in _OUTPUTS or op_type in _BOTH


def kind_of(op_type: str) -> str:
    """The kind of an op, in the words of `Graph`."""
    return _KINDS.get(op_type, op_type.lower())


def statistics_of(op_type: str) -> range:
    """Positions of the inputs that are no parameters, although they are numbers in the file: running statistics."""
    return range(3, 5) if op_type == "BatchNormalization" else range(0)
