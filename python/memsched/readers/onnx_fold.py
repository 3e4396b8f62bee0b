"""Small constants of an ONNX model, computed: ONNX infers what a Reshape makes of a tensor only from its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from memsched.errors import MemschedError
from memsched.readers.onnx_costs import Shape
from memsched.support.interrupt import optional

MOST_KEPT = 1024  # elements of a constant that may be a shape or an index
# What exporters compute shapes with, and what makes no more elements than it is given.
_FOLDED = frozenset(
    {
        *("Constant", "Cast", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Transpose"),
        *("Neg", "Abs", "Floor", "Ceil", "Sqrt", "Not", "ReduceProd", "ReduceSum"),
    }
)
_BROADCAST = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Where", "Equal", "And", "Or", "Less", "Greater"}
)
_SHAPED = frozenset({"ConstantOfShape", "Expand"})  # the last input is the shape of the output

Values = dict[str, "np.ndarray[Any, Any]"]


def known_values(onnx: Any, graph: Any) -> Values:
    """The small initializers, apart from those in other files."""
    found: Values = {}
    for one in graph.initializer:
        if math.prod(one.dims) <= MOST_KEPT and one.data_location != onnx.TensorProto.EXTERNAL:
            with suppress(ValueError, TypeError, KeyError):  # it has no numbers, or others than it says
                found[one.name] = onnx.numpy_helper.to_array(one)
    return found


def fold(onnx: Any, model: Any, shapes: Mapping[str, Shape], values: Values) -> bool:
    """Make initializers of ops whose results can be computed, and whether there was any; `values` gets the results."""
    rest, before = onnx.GraphProto(), len(values)
    reference = optional("onnx.reference", MemschedError("the package onnx has no onnx.reference; install it anew"))
    for node in model.graph.node:
        value = _value(onnx, reference, model, node, shapes, values)
        if value is None or value.size > MOST_KEPT:
            rest.node.append(node)
        else:
            values[node.output[0]] = value
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, node.output[0]))
    model.graph.ClearField("node")
    model.graph.node.extend(rest.node)
    return len(values) > before


def _together(given: Sequence[np.ndarray[Any, Any]]) -> int:
    """Elements of the result of an op that broadcasts its inputs; 0 if they do not go together."""
    try:
        return math.prod(np.broadcast_shapes(*(one.shape for one in given)))
    except ValueError:
        return 0


def _value(onnx: Any, reference: Any, model: Any, node: Any, shapes: Mapping[str, Shape], values: Values) -> Any:
    """What an op writes; None if it cannot be known, or is not worth it."""
    if node.op_type == "Shape" and node.input and node.input[0] in shapes:
        part = {one.name: one.i for one in node.attribute}
        return np.array(shapes[node.input[0]][part.get("start", 0) : part.get("end")], dtype=np.int64)
    if (
        node.domain
        or node.op_type not in (_FOLDED | _SHAPED | _BROADCAST)
        or not all(name in values for name in node.input if name)
    ):
        return None
    if any(one.t.data_location == onnx.TensorProto.EXTERNAL for one in node.attribute):
        return None  # the reference would read another file
    given = [values[name] for name in node.input if name]
    if node.op_type in _SHAPED and given and math.prod(max(1, int(side)) for side in given[-1].flat) > MOST_KEPT:
        return None
    if node.op_type in _BROADCAST and _together(given) > MOST_KEPT:
        return None
    names = dict.fromkeys(name for name in node.input if name)
    inputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in names]
    outputs = [onnx.helper.make_value_info(node.output[0], onnx.TypeProto())]
    single = onnx.helper.make_model(
        onnx.helper.make_graph([node], "op", inputs, outputs), opset_imports=model.opset_import
    )
    try:
        evaluator = reference.ReferenceEvaluator(single)
        with np.errstate(all="ignore"):
            return np.asarray(evaluator.run(None, {name: values[name] for name in names})[0])
    except Exception:  # of numpy, or onnx has no reference of this op: the shape remains unknown
        return None
