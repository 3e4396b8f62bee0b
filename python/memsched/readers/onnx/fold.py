"""Small constants of an ONNX model, computed: ONNX infers what a Reshape makes of a tensor only from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from memsched.errors import MemschedError
from memsched.readers.onnx.constants import MOST_KEPT
from memsched.readers.onnx.costs import Shape
from memsched.support.interrupt import optional

# What exporters compute shapes with.
_FOLDED = frozenset(
    {
        *("Constant", "Cast", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Transpose"),
        *("Neg", "Abs", "Floor", "Ceil", "Sqrt", "Not", "ReduceProd", "ReduceSum", "ConstantOfShape", "Expand"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Where", "Equal", "And", "Or", "Less", "Greater"),
    }
)

_TEXT = "OSUT"  # kinds of numpy; a sum of texts is as long as both

Values = dict[str, "np.ndarray[Any, Any]"]


def known_values(onnx: Any, graph: Any) -> Values:
    """The small initializers, apart from texts and from those in other files."""
    found: Values = {}
    for one in graph.initializer:
        if math.prod(one.dims) <= MOST_KEPT and one.data_location != onnx.TensorProto.EXTERNAL:
            with suppress(ValueError, TypeError, KeyError):  # of a type that numpy does not know
                value = onnx.numpy_helper.to_array(one)
                if value.dtype.kind not in _TEXT:
                    found[one.name] = value
    return found


def may_fold(onnx: Any, node: Any, values: Values) -> bool:
    """Whether an op can be computed once it is known that its result is small."""
    return (
        not node.domain
        and node.op_type in _FOLDED
        and len(node.output) == 1
        and all(name in values for name in node.input if name)
        # the reference would read another file
        and not any(one.t.data_location == onnx.TensorProto.EXTERNAL for one in node.attribute)
    )


def shape_of(node: Any, shapes: Mapping[str, Shape]) -> Any:
    """What the op Shape writes; None if the shape of what it reads is not known."""
    if not node.input or node.input[0] not in shapes or not node.output:
        return None
    part = {one.name: one.i for one in node.attribute}
    return np.array(shapes[node.input[0]][part.get("start", 0) : part.get("end")], dtype=np.int64)


def folded(onnx: Any, model: Any, node: Any, shape: Shape | None, values: Values) -> Any:
    """The few numbers that an op which may be folded writes; None if they cannot be known, or its shape is large.

    The shape is what ONNX infers, without the numbers. It is all that limits what the reference takes.
    """
    if shape is None or math.prod(shape) > MOST_KEPT:
        return None
    value = _computed(onnx, model, node, values)
    return None if value is None or value.size > MOST_KEPT or value.dtype.kind in _TEXT else value


def _computed(onnx: Any, model: Any, node: Any, values: Values) -> Any:
    names = dict.fromkeys(name for name in node.input if name)
    inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names]
    outputs = [onnx.helper.make_value_info(node.output[0], onnx.TypeProto())]
    single = onnx.helper.make_model(
        onnx.helper.make_graph([node], "op", inputs, outputs), opset_imports=model.opset_import
    )
    reference = optional("onnx.reference", MemschedError("the package onnx has no onnx.reference; install it anew"))
    try:
        evaluator = reference.ReferenceEvaluator(single)
        with np.errstate(all="ignore"):
            return np.asarray(evaluator.run(None, {name: values[name] for name in names})[0])
    except Exception:  # of numpy, or onnx has no reference of this op: the shape remains unknown
        return None
