"""The numbers in an ONNX model: as many as their dimensions say, or none, since most are needed for their shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from memsched.errors import InvalidInputError, shown
from memsched.readers.onnx.functions import with_inner

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
