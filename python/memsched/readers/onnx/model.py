"""Graphs of training steps from models in the format ONNX."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from memsched._core import Graph
from memsched.errors import InvalidInputError, MemschedError, shown
from memsched.problems.machines import MACHINES, Machine
from memsched.readers.onnx import rules
from memsched.readers.onnx.constants import check_constants
from memsched.readers.onnx.functions import inlined, with_inner
from memsched.readers.onnx.shapes import Form, Forms, forms_of, unknown_dimensions
from memsched.readers.onnx.step import Op, Tensor, training_step
from memsched.support import checks, quantities
from memsched.support.csv_rows import listed
from memsched.support.files import read_bytes
from memsched.support.interrupt import optional
from memsched.support.kinds import told_kind

_MOST_BYTES = 2**31  # of a model; protocol buffers have no more
_SAME_FOR_ALL = ("", "main_graph", "main", "torch_jit", "torch-jit-export")  # names that exporters give

Times: TypeAlias = Mapping[str, float | str | tuple[float | str, float | str]]


def graph_from_onnx(
    source: Any,
    *,
    device: str = "v100",
    dims: Mapping[str, int] | None = None,
    times: Times | None = None,
    constants: Iterable[str] = (),
    batch: int | None = None,
    name: str | None = None,
) -> Graph:
    """Make the graph of a training step from a model in the format ONNX, which describes the forward alone.

    The shapes of all tensors are inferred by ONNX. This is the rule for the rest:

    * Parameters are the initializers of floating numbers, except those of one element, the running statistics of batch
      normalisation, and what `constants` names. They and their gradients are resident, and so are all other constants.
      An op that reads constants alone, or only the shape of a tensor, is no op of the graph.
    * Reshape, Flatten, Squeeze, Unsqueeze and Identity are views: no op, and no tensor of their own.
    * The loss is one op. It reads the outputs that depend on parameters, and writes their gradients.
    * Each op of the forward whose result depends on a parameter, and to whose result a gradient arrives, has one op in
      the backward. They come in the reverse order. It reads the gradients of what the op wrote, and what its derivative
      needs: the inputs by default; the outputs for Relu, Sigmoid, Tanh, Softmax, Exp and the like; both for MaxPool and
      other maxima; the mask for Dropout, one byte per element and added where the model has none; and neither for Add,
      Concat, Gather, averages and the like. Inputs of whole numbers, such as indices, are always read. It writes a
      gradient for each input that depends on a parameter; the inputs of the model get none.
    * Where several ops read a tensor, each of their backward ops but the first one reads the sum of the gradients so
      far and writes the new sum.
    * A forward takes max(operations / (0.6 x peak), bytes / (0.75 x memory bandwidth)) + 4 microseconds on the device,
      a model and not a measurement. Operations are counted for Conv, ConvTranspose, Gemm and MatMul. A backward takes
      twice as long. No op has a workspace.
    * The backward of an op that reads a parameter is `once`, since it adds to the gradient of the parameter.

    The optimiser is not included. Training mode is assumed: a Dropout in the model counts, but exporters leave it out
    where the model was exported for inference.

    Parameters
    ----------
    source : str, path or onnx.ModelProto
        Files with the weights beside the model are not read, since only shapes are needed.
    device : str
        A machine, such as "v100", "a100" or "h100".
    dims : dict, optional
        The values of the dimensions without a number, by their names, as in {"batch": 8}. A dimension without a name
        is called as in "x[0]": dimension 0 of input x.
    times : dict, optional
        By the name of the op: seconds of its forward, or a pair of those of forward and backward, instead of the rule.
    constants : list of str, optional
        Names of initializers of floating numbers that are not trained, such as masks.
    batch : int, optional
        Samples per training step, to be shown; by default the first dimension of the first input.
    name : str, optional
        By default that of the model, or of its file where an exporter calls every model `main_graph`.

    Returns
    -------
    Graph

    Raises
    ------
    InvalidInputError
        The model cannot be read, has dimensions without a value, tensors whose shapes cannot be inferred or contradict
        what it states, control flow, or no parameter; the message names the tensor or the op.
    MemschedError
        The package onnx is not installed: `pip install onnx`.

    Examples
    --------
    >>> import memsched as ms
    >>> import onnx.parser  # doctest: +SKIP
    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["" : 17]> mlp (float[N, 2] x) => (float[N, 1] y) '
    ...     "<float[2, 1] a = {1, 2}, float[1, 1] b = {3}> { h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }"
    ... )  # doctest: +SKIP
    >>> step = ms.Graph.from_onnx(model, dims={"N": 64})  # doctest: +SKIP
    >>> [op["name"] for op in step.ops][3:]  # doctest: +SKIP
    ['loss', 'MatMul_2.bwd', 'Relu_1.bwd', 'MatMul_0.bwd']
    """
    for what, given in (("dims", dims), ("times", times)):
        if given is not None and not isinstance(given, Mapping):
            raise InvalidInputError(f"{what} is {shown(given)}; it must be a dict")
    gpu = device.strip().lower().partition(":")[0] if isinstance(device, str) else device  # the link does not matter
    speeds = MACHINES[checks.choice("device", gpu, MACHINES)]
    onnx = optional("onnx", MemschedError("reading ONNX models needs the package onnx: pip install onnx"))
    model = _loaded(onnx, source)
    fixed = _fixed(model.graph, constants)
    reader = _Forward(onnx, forms_of(onnx, model, dims), model.graph, speeds, dict(times or {}), fixed)
    ops = list(reader.ops())
    reader.check_times(ops)
    outputs = [reader.tensors[root] for one in model.graph.output if (root := reader.root(one.name)) in reader.tensors]
    step = training_step(reader.inputs, ops, outputs, reader.loss_seconds(outputs))
    first = next((reader.forms[one.name].shape for one in reader.inputs), ())
    return Graph(
        step.tensors,
        step.ops,
        name=checks.text("name", name if name is not None else _title(model.graph.name, source)),
        batch=batch if batch is not None else max(1, first[0] if first else 1),
        resident=reader.resident,
    )


def _title(own: str, source: Any) -> str:
    """The name of a model; that of its file where an exporter gives all models the same."""
    if own in _SAME_FOR_ALL and isinstance(source, str | os.PathLike):
        return Path(source).stem
    return own or "graph"


def dimensions(path: str) -> list[str]:
    """The names of the dimensions without a number of a model in a file."""
    model = _loaded(optional("onnx", MemschedError("reading ONNX models needs the package onnx")), path)
    return list(dict.fromkeys(name for name, _ in unknown_dimensions(model.graph)))


def _loaded(onnx: Any, source: Any) -> Any:
    """A copy of the model, with functions of its own inlined."""
    model = onnx.ModelProto()
    if isinstance(source, onnx.ModelProto):
        model.CopyFrom(source)
    elif isinstance(source, str | os.PathLike):
        content = read_bytes(source, _MOST_BYTES, "save its weights in a file beside it")
        try:
            model.ParseFromString(content)
        except Exception as error:  # of protobuf, which has classes of its own
            kind = told_kind(content[:200]) or f"not an ONNX model, or is truncated: {error}"
            raise InvalidInputError(f"'{os.fspath(source)}' is {kind}") from error
    else:
        raise InvalidInputError(f"source is {shown(source)}; give an onnx.ModelProto or the path of a file")
    if not model.graph.node:
        raise InvalidInputError("the model has no ops; is it an ONNX model?")
    _name_default_domain(model)
    check_constants(onnx, model)
    return inlined(model)


def _name_default_domain(model: Any) -> None:
    """Call the domain of ONNX itself "", of its two names, everywhere."""
    nodes = [*model.graph.node, *(node for one in model.functions for node in one.node)]
    for node in with_inner(nodes):
        if not isinstance(node.op_type, str) or not isinstance(node.domain, str):
            raise InvalidInputError(f"the model cannot be read: the type of an op is {shown(node.op_type)}, no text")
    domains = [model, *model.functions]
    for one in (*with_inner(nodes), *(each for owner in domains for each in owner.opset_import)):
        if one.domain == "ai.onnx":
            one.domain = ""


def _twice(name: str) -> InvalidInputError:
    return InvalidInputError(f"the model writes tensor '{name}' twice; each tensor has one writer")


def _fixed(graph: Any, names: Any) -> set[str]:
    """Initializers that are no parameters, whatever they are: those of one element, and those with these names."""
    if isinstance(names, Mapping) or not checks.is_list(names):
        raise InvalidInputError(f"constants is {shown(names)}; it must be a list of names of initializers")
    given, known = list(names), dict.fromkeys(one.name for one in graph.initializer)
    for name in given:
        if not isinstance(name, str) or name not in known:
            raise InvalidInputError(f"constants has {shown(name)}; initializers of the model are {listed(known)}")
    return {*given, *(one.name for one in graph.initializer if math.prod(one.dims) == 1)}


def _statistics(graph: Any) -> set[str]:
    """Tensors that are read as running statistics and as nothing else, perhaps through views of them."""
    uses: dict[str, set[bool]] = {one.name: {False} for one in graph.output}
    for node in reversed(graph.node):
        own = rules.statistics_of(rules.type_of(node))
        for at, name in enumerate(node.input):
            viewed = at == 0 and rules.type_of(node) in rules.VIEWS and node.output
            uses.setdefault(name, set()).update(uses.get(node.output[0], set()) if viewed else {at in own})
    return {name for name, kinds in uses.items() if kinds == {True}}


class _Forward:
    """The ops of the forward, and what is resident."""

    def __init__(
        self, onnx: Any, forms: Forms, graph: Any, speeds: Machine, times: dict[str, Any], fixed: set[str]
    ) -> None:
        self.onnx, self.forms, self.graph, self.speeds, self.times = onnx, forms, graph, speeds, times
        self.views: dict[str, str] = {}  # name of a view -> that of the tensor
        self.tensors: dict[str, Tensor] = {}
        self.constants = {one.name for one in graph.initializer}
        statistics = _statistics(graph)
        self.learned = {name for name in self.constants - statistics - fixed if forms[name].floating}
        self.resident = sum(forms[name].size * (2 if name in self.learned else 1) for name in self.constants)
        self.inputs = [self.tensor(one.name, "input") for one in graph.input if one.name not in self.constants]
        self.names: set[str] = set()

    def tensor(self, name: str, role: str = "activation") -> Tensor:
        """A new tensor."""
        form = self.forms[name]
        if name in self.tensors:
            raise _twice(name)
        self.tensors[name] = Tensor(name=name, size=form.size, floating=form.floating, role=role)
        return self.tensors[name]

    def free(self, name: str) -> str:
        """A name that no tensor has."""
        while name in self.forms:
            name += "_"
        return name

    def root(self, name: str) -> str:
        return self.views.get(name, name)

    def ops(self) -> Iterator[Op]:
        """The ops in the order of the model, which is topological."""
        for place, node in enumerate(self.graph.node):
            title = self.title(node, place)
            known = self.onnx.AttributeProto
            if any(one.type in (known.GRAPH, known.GRAPHS) for one in node.attribute):
                raise InvalidInputError(f"op '{title}' is a {node.op_type}, which has ops of its own; unroll it first")
            given = [name for name in node.input if name]
            for name in given:
                if name not in self.constants and self.root(name) not in self.tensors:
                    raise InvalidInputError(f"op '{title}' reads '{name}', which no op before it writes")
            made = [name for name in node.output if name]
            if not made:
                continue
            for name in made:
                if name in self.tensors or name in self.views or name in self.constants:
                    raise _twice(name)
            reads = tuple(dict.fromkeys(self.tensors[self.root(name)] for name in given if name not in self.constants))
            if not reads or rules.type_of(node) in rules.SHAPES:
                self.fold(node, made, given)
            elif rules.type_of(node) in rules.VIEWS and given[0] not in self.constants:
                self.views[made[0]] = self.root(given[0])
            else:
                yield self.op(node, title, given, made, reads)

    def fold(self, node: Any, made: list[str], given: list[str]) -> None:
        """Outputs that do not depend on the data; those of parameters lead to parameters."""
        self.constants.update(made)
        if self.learned.intersection(given):
            self.learned.update(name for name in made if self.forms[name].floating)
        if rules.type_of(node) not in rules.VIEWS:
            self.resident += sum(self.forms[name].size for name in made)

    def op(self, node: Any, title: str, given: list[str], made: list[str], reads: tuple[Tensor, ...]) -> Op:
        op_type = rules.type_of(node)
        if op_type == rules.MASKED:
            kept, mask = [*node.output, ""][:2]  # either may be left out, by an empty name
            mask = mask or self.free(f"{kept}.mask")
            made = [kept, mask] if kept else [mask]
            self.forms[mask] = Form(self.forms[node.input[0]].shape, "bool")
        writes = [self.tensor(name) for name in made]
        return Op(
            name=title,
            op_type=op_type,
            reads=reads,
            writes=tuple(writes),
            mask=writes[-1] if op_type == rules.MASKED else None,
            parameters=bool(self.learned.intersection(given)),
            seconds=self.seconds(node, title, made),
        )

    def title(self, node: Any, place: int) -> str:
        """The name of an op, which not all models have."""
        title = node.name or f"{node.op_type}_{place}"
        while title in self.names:
            title = f"{title}_{place}"
        self.names.add(title)
        return title

    def seconds(self, node: Any, title: str, made: list[str]) -> tuple[float, float]:
        """Of forward and backward: those that were given, or by the rule."""
        if title in self.times:
            given = self.times[title]
            pair = given if isinstance(given, tuple | list) else (given, None)
            if len(pair) != 2:
                raise InvalidInputError(f"times['{title}'] is {shown(given)}; it must be seconds, or a pair of seconds")
            forward = quantities.seconds(f"times['{title}']", pair[0])
            return forward, 2 * forward if pair[1] is None else quantities.seconds(f"times['{title}']", pair[1])
        inputs = [self.forms[name] if name else None for name in node.input]
        outputs = [self.forms[name] for name in made]
        sizes = [form.size for form in inputs if form is not None]
        op_type = rules.type_of(node)
        if op_type in rules.PARTS:
            sizes[0] = min(sizes[0], outputs[0].size)
        attributes = {one.name: one.i for one in node.attribute}
        shapes: list[rules.Shape | None] = [None if form is None else form.shape for form in inputs]
        flops = rules.flops_of(op_type, attributes, shapes, outputs[0].shape)
        moved = sum(sizes) + sum(form.size for form in outputs)
        first = next(form.dtype for form in inputs if form is not None)
        forward = self.speeds.seconds(flops, moved, first, rules.kind_of(op_type) == "conv")
        return forward, 2 * forward

    def loss_seconds(self, outputs: list[Tensor]) -> float:
        """It reads the outputs and writes as much."""
        return self.speeds.seconds(0, 2 * sum(one.size for one in outputs), "float32", False)

    def check_times(self, ops: list[Op]) -> None:
        """Refuse times of ops that there are not."""
        unknown = self.times.keys() - {op.name for op in ops}
        if unknown:
            known = listed(op.name for op in ops)
            raise InvalidInputError(f"times has {listed(sorted(map(str, unknown)))}, which are no ops; ops are {known}")
