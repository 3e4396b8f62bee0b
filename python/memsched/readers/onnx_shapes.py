"""Shapes and types of all tensors of an ONNX model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memsched.errors import InvalidInputError
from memsched.readers.onnx_costs import Shape
from memsched.readers.onnx_fold import MOST_KEPT, fold, known_values
from memsched.readers.values import listed
from memsched.support import checks

_BITS = {
    **{
        "float": 32,
        "float32": 32,
        "float64": 64,
        "float16": 16,
        "bfloat16": 16,
        "double": 64,
        "bool": 8,
        "complex64": 64,
        "complex128": 128,
    },
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Shape and type of a tensor."""

    shape: Shape
    type: str  # as numpy calls it

    @property
    def floating(self) -> bool:
        """Whether it may have a gradient."""
        return self.type.startswith(("float", "bfloat", "double", "complex"))

    @property
    def size(self) -> int:
        """Bytes."""
        bits = 8 if self.type.startswith("float8") else 4 if self.type.startswith("float4") else _BITS[self.type]
        return (math.prod(self.shape) * bits + 7) // 8


class Kinds:
    """The kinds of all tensors of a model, by name; those that nobody asks for may be unknown."""

    def __init__(self, known: dict[str, Kind]) -> None:
        self._known = known

    def add(self, name: str, kind: Kind) -> None:
        self._known[name] = kind

    def of(self, name: str) -> Kind:
        """The kind of a tensor; refuses one that could not be inferred."""
        kind = self._known.get(name)
        if kind is None:
            raise InvalidInputError(
                f"the shape or the type of tensor '{name}' cannot be inferred; simplify the model, or state it in the "
                "model's value_info"
            )
        return kind


def kinds_of(onnx: Any, model: Any, dims: Mapping[str, int] | None) -> Kinds:
    """Shapes and types as ONNX infers them, once its dimensions have values; the model is changed."""
    graph = model.graph
    if graph.sparse_initializer:
        raise InvalidInputError("the model has sparse initializers, which memsched does not know; make them dense")
    constants = {one.name for one in graph.initializer}
    _set_dimensions([one for one in graph.input if one.name not in constants], dims)
    for one in graph.initializer:
        if math.prod(one.dims) > MOST_KEPT:  # its numbers are not needed, and may be gigabytes
            for field in ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data"):
                one.ClearField(field)
    stated = [one for one in graph.value_info if _shape(one.type.tensor_type) is not None]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    for one in graph.output:
        if _shape(one.type.tensor_type) is None:
            one.type.tensor_type.ClearField("shape")
    return Kinds(dict(_named(onnx, _inferred(onnx, model))))


def _inferred(onnx: Any, model: Any) -> dict[str, tuple[Shape, int]]:
    """Shape and number of the type of each tensor; what depends on numbers of the model is computed step by step."""
    work = onnx.ModelProto()
    work.CopyFrom(model)
    work.ir_version = max(work.ir_version, 4)  # before, weights had to be inputs as well
    values = known_values(onnx, work.graph)
    while True:
        try:
            graph = onnx.shape_inference.infer_shapes(work, data_prop=True).graph
        except Exception as error:  # of onnx, which has classes of its own
            raise InvalidInputError(f"the shapes of the model cannot be inferred: {error}") from error
        known: dict[str, tuple[Shape, int]] = {one.name: (tuple(one.dims), one.data_type) for one in graph.initializer}
        for one in (*graph.input, *graph.value_info, *graph.output):
            shape = _shape(one.type.tensor_type)
            if shape is not None and one.name not in known:
                known[one.name] = (shape, one.type.tensor_type.elem_type)
        unknown = any(name and name not in known for node in work.graph.node for name in node.output)
        if not unknown or not fold(onnx, work, {name: shape for name, (shape, _) in known.items()}, values):
            return known


def _named(onnx: Any, known: Mapping[str, tuple[Shape, int]]) -> Iterator[tuple[str, Kind]]:
    types = {number: kind.lower() for kind, number in onnx.TensorProto.DataType.items()}
    for name, (shape, number) in known.items():
        kind = types.get(number, f"number {number}")
        if kind in _BITS or kind.startswith(("float8", "float4")):
            yield name, Kind(shape, {"float": "float32", "double": "float64"}.get(kind, kind))
        elif kind != "undefined":
            raise InvalidInputError(f"tensor '{name}' has the type {kind}, whose bytes nobody knows; remove it")


def _shape(tensor_type: Any) -> Shape | None:
    """The shape in a type, if all of its dimensions have values."""
    if not tensor_type.HasField("shape"):
        return None
    dims = tensor_type.shape.dim
    if not all(one.HasField("dim_value") and one.dim_value >= 0 for one in dims):
        return None
    return tuple(one.dim_value for one in dims)


def _set_dimensions(inputs: list[Any], dims: Mapping[str, int] | None) -> None:
    """Give values to the dimensions of the inputs that have none."""
    given = {key: checks.count(f"dims['{key}']", value, 1, 2**53) for key, value in dict(dims or {}).items()}
    asked: dict[str, None] = {}
    for one in inputs:
        if one.type.WhichOneof("value") != "tensor_type" or not one.type.tensor_type.HasField("shape"):
            raise InvalidInputError(f"input '{one.name}' is no tensor with a number of dimensions; memsched needs one")
        for k, dim in enumerate(one.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            name = dim.dim_param or f"{one.name}[{k}]"
            asked[name] = None
            if name in given:
                dim.dim_value = given[name]
    missing, unknown = [name for name in asked if name not in given], [name for name in given if name not in asked]
    if missing:
        form = ", ".join(f"'{name}': .." for name in missing)
        raise InvalidInputError(
            f"the dimensions {listed(missing)} of the inputs have no value; give Graph.from_onnx dims={{{form}}}"
        )
    if unknown:
        there = f"those without a number are {listed(asked)}" if asked else "all of its dimensions have numbers"
        raise InvalidInputError(f"dims has {listed(unknown)}, which the inputs of the model have not; {there}")
