"""Shapes and types of all tensors of an ONNX model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from memsched.errors import InvalidInputError
from memsched.readers.onnx.constants import Values, bits_of, dtypes, folded, known_values, may_fold, shape_of
from memsched.readers.onnx.functions import with_inner
from memsched.readers.onnx.rules import Shape
from memsched.support import checks
from memsched.support.csv_rows import listed

Known: TypeAlias = dict[str, tuple[Shape, int]]
"""Shapes and numbers of types of tensors, by name."""


@dataclass(frozen=True, slots=True)
class Form:
    """Shape and type of a tensor."""

    shape: Shape
    dtype: str  # as numpy calls it

    @property
    def floating(self) -> bool:
        """Whether it may have a gradient."""
        return self.dtype.startswith(("float", "bfloat", "double", "complex"))

    @property
    def size(self) -> int:
        """Bytes."""
        return (math.prod(self.shape) * (bits_of(self.dtype) or 0) + 7) // 8


class Forms(dict[str, Form]):
    """The forms of all tensors of a model, by name; those that nobody asks for may be unknown."""

    def __missing__(self, name: str) -> Form:
        raise InvalidInputError(
            f"the shape or the type of tensor '{name}' cannot be inferred; simplify the model, or state it in the "
            "model's value_info"
        )


def forms_of(onnx: Any, model: Any, dims: Mapping[str, int] | None) -> Forms:
    """Shapes and types as ONNX infers them, once its dimensions have values; the model is changed."""
    graph = model.graph
    if graph.sparse_initializer:
        raise InvalidInputError("the model has sparse initializers, which memsched does not know; make them dense")
    for node in with_inner(graph.node):
        parts = next((one.i for one in node.attribute if one.name == "num_outputs"), 0)
        if node.op_type == "Split" and parts > len(node.output):  # ONNX would make a list of them
            raise InvalidInputError(
                f"op '{node.name or node.op_type}' has num_outputs {parts}, but {len(node.output)} outputs; "
                "make them equal"
            )
    given = _set_dimensions(graph, dims)
    stated: Known = {}
    partly: list[tuple[str, Sequence[int | None], int]] = []
    for one in (*graph.value_info, *graph.output):
        told = one.type.tensor_type
        if told.HasField("shape"):
            for dim in told.shape.dim:
                if dim.dim_param in given:
                    dim.dim_value = given[dim.dim_param]
            partly.append(
                (one.name, [dim.dim_value if _has_value(dim) else None for dim in told.shape.dim], told.elem_type)
            )
        _keep(stated, one.name, one.type)
        told.ClearField("shape")
        told.ClearField("elem_type")  # else it is taken for what is inferred
    del graph.value_info[:]
    known = _inferred(onnx, model, stated)
    for name, shape, number in partly:
        if name in known and _contradicts(shape, number, known[name]):
            raise InvalidInputError(
                f"the model states {_shown(onnx, shape, number)} of tensor '{name}', which is "
                f"{_shown(onnx, *known[name])} with these inputs; remove the value_info and the shapes of outputs"
            )
    _check_reshapes(graph, known)
    return Forms(_named(onnx, known))


def _check_reshapes(graph: Any, known: Known) -> None:
    """Refuse a model that was exported for one batch and is read for another: ONNX does not count the elements."""
    for node in graph.node:
        pair = [known[name][0] for name in (*node.input[:1], *node.output[:1]) if name in known]
        if (
            node.op_type == "Reshape"
            and not node.domain
            and len(pair) == 2
            and math.prod(pair[0]) != math.prod(pair[1])
        ):
            raise InvalidInputError(
                f"op '{node.name or node.output[0]}' reshapes {list(pair[0])} to {list(pair[1])}, which has another "
                "number of elements; export the model with a dynamic batch, or read it with the dims of its export"
            )


def _contradicts(said: Sequence[int | None], kind: int, known: tuple[Shape, int]) -> bool:
    """Whether what a model states of a tensor, where it does, is not what is known."""
    shape, number = known
    other = any(one not in (None, dim) for one, dim in zip(said, shape, strict=False))
    return other or len(said) != len(shape) or kind not in (0, number)


def _shown(onnx: Any, shape: Sequence[int | None], number: int) -> str:
    dims = ", ".join("?" if one is None else str(one) for one in shape)
    return f"the shape [{dims}] and the type {dtypes(onnx).get(number, number)}"


def _inferred(onnx: Any, model: Any, stated: Known) -> Known:
    """Shape and number of the type of each tensor: as ONNX infers them of the model as a whole.

    Where that is not enough, as what a Reshape makes depends on numbers that the model computes, op by op, in order.
    What the model states counts only where nothing can be inferred.
    """
    work = onnx.ModelProto()
    work.CopyFrom(model)
    work.ir_version = max(work.ir_version, 4)  # before, weights had to be inputs as well
    types: dict[str, Any] = {}
    for one in _infer(onnx, work):
        types.setdefault(one.name, one.type)  # an output may be an input, which has a shape
    known: Known = {one.name: (tuple(one.dims), one.data_type) for one in work.graph.initializer}
    for name, type in types.items():
        _keep(known, name, type)
    if any(name and name not in known for node in work.graph.node for name in node.output):
        _op_by_op(onnx, work, types, known, stated)
    return known


def _infer(onnx: Any, model: Any) -> list[Any]:
    """All tensors of a model, with what is known of their types."""
    try:
        # Without data_prop, which makes a dimension of each element that a tensor says it has.
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception as error:  # of onnx, which has classes of its own
        raise InvalidInputError(f"the shapes of the model cannot be inferred: {error}") from error
    return [*graph.input, *graph.value_info, *graph.output]


def _keep(known: Known, name: str, type: Any) -> None:
    """Note a shape, if it is new and has all of its dimensions."""
    shape = _shape(type.tensor_type)
    if shape is not None and name not in known:
        known[name] = shape, type.tensor_type.elem_type


def _op_by_op(onnx: Any, model: Any, types: dict[str, Any], known: Known, stated: Known) -> None:
    """Infer what is still unknown: each op once, when all is known of what it reads, and its result if it is small."""
    values, new = known_values(onnx, model.graph), set[str]()
    shapes = {name: shape for name, (shape, _) in known.items()}
    for node in model.graph.node:
        if not all(isinstance(name, str) for name in (*node.input, *node.output)):
            continue  # damaged: bytes that are no text
        value, found, ready = None, dict[str, Any](), may_fold(onnx, node, values)
        if node.op_type == "Shape" and not node.domain:
            value = shape_of(node, shapes)
        elif ready or not new.isdisjoint(node.input) or any(name and name not in known for name in node.output):
            found = {one.name: one.type for one in _infer(onnx, _alone(onnx, model, node, types, known, values))}
            if ready:
                shape = _shape(found[node.output[0]].tensor_type) if node.output[0] in found else None
                value = folded(onnx, model, node, shape, values)
        if value is not None:
            values[node.output[0]] = value
            made = onnx.numpy_helper.from_array(value)
            found = {node.output[0]: onnx.helper.make_tensor_type_proto(made.data_type, made.dims)}
        for name in filter(None, node.output):
            if name in found:
                types[name] = found[name]
                if name not in known:
                    _keep(known, name, found[name])
                    new.add(name)
            if name not in known and name in stated:
                _check_possible(onnx, node, _alone(onnx, model, node, types, known, values))
                known[name] = stated[name]
                new.add(name)
            if name in known:
                shapes[name] = known[name][0]


def _check_possible(onnx: Any, node: Any, alone: Any) -> None:
    """Refuse an op that cannot run on what is known of its inputs, whatever the model states of its results."""
    if node.domain or not onnx.defs.has(node.op_type):
        return  # nothing is known of it
    try:
        onnx.shape_inference.infer_shapes(alone, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        reason = str(error).strip().rpartition("] ")[2] or str(error)
        raise InvalidInputError(
            f"op '{node.name or node.output[0]}' ({node.op_type}) cannot run with these inputs: {reason}; "
            "give other dims, or correct the model"
        ) from error


def _alone(onnx: Any, model: Any, node: Any, types: Mapping[str, Any], known: Known, values: Values) -> Any:
    """A model of one op, with what is known of its inputs and outputs."""
    helper = onnx.helper
    inputs, numbers = [], []
    for name in dict.fromkeys(filter(None, node.input)):
        if name in values:
            numbers.append(onnx.numpy_helper.from_array(values[name], name))
        elif name in known:
            shape, number = known[name]
            inputs.append(helper.make_tensor_value_info(name, number, shape))
        else:
            inputs.append(helper.make_value_info(name, types.get(name, onnx.TypeProto())))
    outputs = [helper.make_value_info(name, types.get(name, onnx.TypeProto())) for name in node.output if name]
    graph = helper.make_graph([node], "op", inputs, outputs, numbers)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _named(onnx: Any, known: Known) -> Iterator[tuple[str, Form]]:
    names = dtypes(onnx)
    for name, (shape, number) in known.items():
        dtype = names.get(number, f"number {number}")
        if bits_of(dtype) is not None:
            yield name, Form(shape, {"float": "float32", "double": "float64"}.get(dtype, dtype))
        elif dtype != "undefined":
            raise InvalidInputError(f"tensor '{name}' has the type {dtype}, whose bytes nobody knows; remove it")


def _shape(tensor_type: Any) -> Shape | None:
    """The shape in a type, if all of its dimensions have values."""
    if not tensor_type.HasField("shape"):
        return None
    dims = tensor_type.shape.dim
    return tuple(one.dim_value for one in dims) if all(map(_has_value, dims)) else None


def _has_value(dim: Any) -> bool:
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def unknown_dimensions(graph: Any) -> Iterator[tuple[str, Any]]:
    """The dimensions of the inputs that have no value, with their names."""
    constants = {one.name for one in graph.initializer}
    for one in graph.input:
        if one.name in constants:
            continue
        if one.type.WhichOneof("value") != "tensor_type" or not one.type.tensor_type.HasField("shape"):
            raise InvalidInputError(
                f"input '{one.name}' is not a tensor with a known number of dimensions, which memsched needs"
            )
        for k, dim in enumerate(one.type.tensor_type.shape.dim):
            if not _has_value(dim):
                yield dim.dim_param or f"{one.name}[{k}]", dim


def _set_dimensions(graph: Any, dims: Mapping[str, int] | None) -> dict[str, int]:
    """Give values to the dimensions of the inputs that have none; returns them, by name."""
    given = {key: checks.count(f"dims['{key}']", value, 1, 2**53) for key, value in dict(dims or {}).items()}
    asked: dict[str, None] = {}
    for name, dim in unknown_dimensions(graph):
        asked[name] = None
        if name in given:
            dim.dim_value = given[name]
    missing, unknown = [name for name in asked if name not in given], [name for name in given if name not in asked]
    if unknown:
        there = f"those without a number are {listed(asked)}" if asked else "all of its dimensions have numbers"
        near = next(filter(None, (checks.close(name, missing) for name in unknown)), None)
        guess = f"did you mean '{near}'? " if near else ""
        raise InvalidInputError(f"no input of the model has a dimension {listed(unknown)}; {guess}{there}")
    if missing:
        form, typed = ", ".join(f"'{name}': .." for name in missing), "&".join(f"{name}=.." for name in missing)
        raise InvalidInputError(
            f"the dimensions {listed(missing)} of the inputs have no value; give Graph.from_onnx dims={{{form}}}, "
            f"or on the command line write 'model.onnx?{typed}'"
        )
    return given
