"""The numbers in an ONNX model: as many as their dimensions say, or none, since most are needed for their shape.

Small ones are computed: ONNX infers what a Reshape makes of a tensor only from its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from memsched.errors import InvalidInputError, MemschedError, shown
from memsched.readers.onnx.functions import with_inner
from memsched.readers.onnx.rules import Shape
from memsched.support.interrupt import optional

MOST_KEPT = 1024  # elements of a constant that may be a shape or an index

_BITS = {
    **{"float": 32, "float16": 16, "bfloat16": 16, "double": 64, "bool": 8, "complex64": 64, "complex128": 128},
    **{"float32": 32, "float64": 64},  # as numpy calls float and double
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
}
# Where the numbers of a type stand, if not as bytes in raw_data; all others stand in int32_data.
_FIELDS = {
    **{"float": "float_data", "complex64": "float_data", "double": "double_data", "complex128": "double_data"},
    **{"int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data", "string": "string_data"},
}
_DATA = ("raw_data", "int32_data", *dict.fromkeys(_FIELDS.values()))
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


def bits_of(dtype: str) -> int | None:
    """Bits of an element, by the name of its type in ONNX, in lower case, or in numpy; None if nobody knows."""
    return 8 if dtype.startswith("float8") else 4 if dtype.startswith("float4") else _BITS.get(dtype)


def dtypes(onnx: Any) -> dict[int, str]:
    """The types of elements by the numbers that ONNX has for them."""
    return {number: name.lower() for name, number in onnx.TensorProto.DataType.items()}


def check_constants(onnx: Any, model: Any) -> None:
    """Refuse constants with other numbers than their dimensions say; of large ones, drop the numbers.

    A constant may have none, as in models without their weights. They stand in the graph of the model, in those of
    its ops, and in its functions.
    """
    names = dtypes(onnx)
    for what, one in _tensors(model):
        elements = math.prod(one.dims)
        if any(side < 0 for side in one.dims):
            raise InvalidInputError(f"{what} has the dimensions {_dims(one)}, which must not be negative")
        found = _held(onnx, one, names.get(one.data_type, ""), elements)
        if found is not None:
            unit, held, needed = found
            raise InvalidInputError(
                f"{what} has {held} {unit}, but its dimensions {_dims(one)} need {needed}; export the model again"
            )
        if elements > MOST_KEPT:  # its numbers are not needed, and may be gigabytes
            for field in _DATA:
                one.ClearField(field)


def _held(onnx: Any, one: Any, dtype: str, elements: int) -> tuple[str, int, int] | None:
    """What a constant is measured in, how many it has, and how many it needs; None if it has what it needs."""
    bits = bits_of(dtype)
    if bits is None and dtype != "string":
        return None  # a type that the reader refuses where it is used
    bytes_needed = (elements * (bits or 0) + 7) // 8
    if one.data_location == onnx.TensorProto.EXTERNAL:
        lengths = [each.value for each in one.external_data if each.key == "length"]
        held = next((int(each) for each in lengths if each.isdecimal() and len(each) < 20), bytes_needed)
        found = ("bytes in another file", held, bytes_needed)
    elif one.HasField("raw_data") and bits is not None:
        found = ("bytes", len(one.raw_data), bytes_needed)
    else:
        field = _FIELDS.get(dtype, "int32_data")
        packed = bits is not None and bits < 8  # those of one byte stand in one number
        needed = bytes_needed if packed else elements * (2 if dtype.startswith("complex") else 1)
        found = (f"numbers in {field}", len(getattr(one, field)), needed)
    return None if found[1] in (0, found[2]) else found


def _dims(one: Any) -> str:
    return shown(list(one.dims))


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """All constants of a model, each with what the user may know it by."""
    bodies = [model.graph.node, *(one.node for one in model.functions)]
    defaults = [each for one in model.functions for each in getattr(one, "attribute_proto", ())]
    graphs = [model.graph, *(graph for one in defaults for graph in (one.g, *one.graphs))]
    owners = [(f"attribute '{one.name}' of a function", one) for one in defaults]
    for node in (each for body in (*bodies, *(graph.node for graph in graphs[1:])) for each in with_inner(body)):
        title = f"op '{node.name or ', '.join(map(str, node.output)) or node.op_type}'"
        owners += [(f"attribute '{one.name}' of {title}", one) for one in node.attribute]
        graphs += [graph for one in node.attribute for graph in (one.g, *one.graphs)]
    for graph in graphs:
        yield from ((f"initializer '{one.name}'", one) for one in graph.initializer)
    for what, owner in owners:
        tensors = [*([owner.t] if owner.HasField("t") else []), *owner.tensors]
        yield from ((what, one) for one in tensors)


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
